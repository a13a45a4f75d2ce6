// The two layouts of hubs: where a model's listing and its files are, and what a refusal means. Not thread-safe.
#pragma once
#include "pull/listing.h"
#include "pull/pull.h"
#include "pull/request.h"

struct hub {
    const struct pull_config *config;
    char revision[256]; // what files are asked of: the commit, where the hub tells it, so that all are of one
};

// Checks repo, revision, endpoint and token. ERR_USAGE names the one that is wrong.
int hub_init(struct hub *h, const struct pull_config *c, struct err *e) MUST_CHECK;
// All files of the revision, finished. listing_fini after each.
int hub_list(struct hub *h, struct listing *l, struct err *e) MUST_CHECK;
// Where a file's bytes are. ERR_LIMIT: the URL would be too long.
int hub_file_url(const struct hub *h, const char *path, char out[LIMIT_PULL_URL], struct err *e) MUST_CHECK;
// The error of a status that is no success, for this file (NULL: for the model).
int hub_refused(const struct hub *h, const char *path, long status, const struct answer *a, struct err *e) MUST_CHECK;

// From a Link header: the path behind "/api/models/" of the URL whose rel is next. false: there is none. The host that
// it names does not count: pages are asked of the endpoint.
bool hub_next_page(const char *link, char *out, size_t out_bytes);
