// Where a stream is to go on: the id of the last event that the client got, as it comes in the header Last-Event-ID.
//
//   <answer id>:<n>           n events of the answer were had
//   <answer id>:<n>.<n>...    of an answer with several choices: of each
//
// Events of a choice are numbered from 1, by the tokens alone; usage counts as one of the first choice. The choices
// take turns as their tokens come, which is why each has a number of its own.
#pragma once
#include "base/buf.h"
#include "base/limits.h"
#include "gateway/errors.h"

enum { RESUME_ID_BYTES = 40 };

struct resume {
    char id[RESUME_ID_BYTES]; // of the answer
    uint32_t n;               // numbers; 0: nothing was had
    uint32_t n_events[LIMIT_ANSWER_CHOICES];
};

// text may be anything. ERR_USAGE: it is no such id.
int resume_parse(const char *text, struct resume *r, struct api_error *e) MUST_CHECK;
