// What people paste: the address of a model's page at a hub, or of a file of it. Pure text work.
#pragma once
#include "base/err.h"
#include "base/limits.h"
#include "pull/pull.h"
#include <stdbool.h>

struct page {
    enum pull_hub hub;
    char model[512];            // "owner/name", with ":FILE" where that stood behind it
    char revision[128];         // "": none
    char file[LIMIT_PULL_PATH]; // "": none
};

// Whether text is such an address rather than "owner/name": it begins with http:// or https://, or with a hub's host.
bool page_is_one(const char *text);
// ERR_USAGE: no hub that is known, or no model's page.
int page_parse(const char *text, struct page *out, struct err *e) MUST_CHECK;
