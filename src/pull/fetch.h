// The files of a choice, over several connections, into a folder: what is there already is left alone, what was begun
// goes on.
#pragma once
#include "pull/choice.h"
#include "pull/hub.h"
#include "pull/state.h"

// The folder exists and is locked. Files that are complete afterwards, or were before, are put into the record, also
// after an error. Fills the counts of r.
int fetch_run(const struct hub *h, const struct listing *l, const struct choice *c, struct state_record *record,
              struct pull_result *r, struct err *e) MUST_CHECK;
