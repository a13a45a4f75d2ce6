// The sub-commands, and what several of them share: which model, computed how, and its text side.
#pragma once
#include "base/err.h"
#include "cmd/flags.h"
#include "head/head.h"
#include "head/open.h"
#include "text/ids.h"
#include "text/template.h"
#include "text/tokenizer.h"

extern const struct command cmd_bench, cmd_chat, cmd_demo, cmd_eval, cmd_inspect, cmd_logits, cmd_node, cmd_pull,
    cmd_quantize, cmd_run, cmd_serve, cmd_status, cmd_synth, cmd_token;

// Flags that say how a model is computed.
struct compute_flags {
    const char *weights, *kv, *isa, *device;
    uint32_t context, threads, chunk, sequences;
    struct flag_u32s split;
    uint64_t memory_bytes;
    bool verbose;
};
// The defaults that are no zeros: also of serve, whose own table holds these flags.
enum { COMPUTE_CHUNK = 512, COMPUTE_SEQUENCES = 16 };
extern const struct compute_flags compute_defaults;
enum { COMPUTE_FLAGS = 11, LEAST_SIZE_BYTES = 1 << 20 };
void compute_flags_table(struct compute_flags *f, struct flag table[COMPUTE_FLAGS]);

// What they mean for a model: fills c (all but cluster fields), and m's hyper-parameters take the context
// (model_set_context). quiet: no progress on stderr.
int compute_config(const struct compute_flags *f, struct opened_model *m, bool quiet, struct head_config *c,
                   struct err *e) MUST_CHECK;
int compute_mode(const struct compute_flags *f, struct run_mode *mode, struct err *e) MUST_CHECK;
int compute_cpu(const struct compute_flags *f, struct backend_cpu_config *cpu, struct err *e) MUST_CHECK;

// Tells, before anything is loaded, how much memory the process will take: in the log, or to whoever sits at a
// terminal. ERR_LIMIT: more than it may.
int memory_tell(const struct head_config *c, struct err *e) MUST_CHECK;

// Tokenizer and template of a model folder. text_open refuses a tokenizer with ids that the model has no row for.
struct text_side {
    struct tokenizer *tokenizer;
    struct chat_template *chat_template; // NULL: the model has none
};
int text_open(const struct opened_model *m, const char *chat_template_path, uint32_t n_helpers, struct text_side *t,
              struct err *e) MUST_CHECK;
void text_close(struct text_side *t);
// ERR_USAGE: the flag's value is not HOST:PORT, or, to_connect, host or port are left open.
int address_flag(const char *name, const char *text, bool to_connect, struct err *e) MUST_CHECK;
// One JSON array of integers from a file, each 0 .. n_vocab-1.
int ids_read_file(const char *path, uint32_t n_vocab, struct ids *out, struct err *e) MUST_CHECK;
// The body of a chat request -> ids, thinking off unless think. What the template refuses is ERR_FORMAT.
int chat_request(const struct text_side *t, const char *body, bool think, struct ids *out, struct chat_prompt *prompt,
                 struct err *e) MUST_CHECK;
// One user message -> ids, thinking off unless think.
int chat_one(const struct text_side *t, const char *message, bool think, struct ids *out, struct chat_prompt *prompt,
             struct err *e) MUST_CHECK;

// Where keys, certificates, tokens and caches lie: --state, else $LOOM_STATE, $XDG_STATE_HOME/loom,
// ~/.local/state/loom.
int state_dir(const char *flag, char *out, size_t out_bytes, struct err *e) MUST_CHECK;
// A load that takes longer than a moment shows how far it is, on a terminal.
struct model_progress progress_bar(void);
void log_setup(bool verbose, bool quiet);
