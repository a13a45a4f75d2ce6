// The bytes in which the head keeps, beside a request, what a later process needs to go on with the answer: struct
// answer_ask, and which choice of it the request makes.
#pragma once
#include "gateway/answer.h"

int record_put(const struct answer_ask *k, uint32_t choice, struct buf *out) MUST_CHECK;
// Bytes may be anything. ERR_FORMAT: they are no record; k holds nothing then. ERR_NOMEM. k->stops is the caller's to
// free(), head.model is not set.
int record_get(const uint8_t *data, size_t len_bytes, struct answer_ask *k, uint32_t *choice) MUST_CHECK;
