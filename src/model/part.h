// The inside of a loaded part and of its scratch, for the files of this folder only.
#pragma once
#include "model/model.h"

enum layer_matrix {
    MAT_Q,
    MAT_K,
    MAT_V,
    MAT_O,
    MAT_GATE,
    MAT_UP,
    MAT_DOWN,
    MAT_SHARED_GATE,
    MAT_SHARED_UP,
    MAT_SHARED_DOWN,
    MAT_ROUTER,
    MAT_N
};
// Norm weights come first: with norm_plus_one they, and no other vectors, get the 1 that the files leave out.
enum layer_vector {
    VEC_ATTN_NORM, // of the input of attention
    VEC_Q_NORM,
    VEC_K_NORM,
    VEC_ATTN_POST, // of its output
    VEC_MLP_NORM,
    VEC_MLP_POST,
    VEC_NORM_N,
    VEC_BIAS_Q = VEC_NORM_N, // rows of q and k: in the order of their matrix (qk_interleaved)
    VEC_BIAS_K,
    VEC_BIAS_V,
    VEC_BIAS_O,
    VEC_BIAS_GATE,
    VEC_BIAS_UP,
    VEC_BIAS_DOWN,
    VEC_ROUTER_BIAS,
    VEC_N
};
enum expert_matrix { EXP_GATE, EXP_UP, EXP_DOWN, EXP_N };

struct layer {
    struct weight *matrix[MAT_N];  // NULL: this layer has none
    float *vector[VEC_N];          // in the backend's memory; NULL: none
    struct weight **expert[EXP_N]; // [n_experts] each, or NULL
    bool has_block;                // a matrix of the integer path is among them: its input must be quantised
};

struct model_part {
    struct hparams h;
    struct run_mode mode;
    struct backend *be;
    uint32_t a, b;
    struct weight *embed, *head; // head is embed where the two are tied
    float *final_norm;
    bool head_has_block;
    struct layer *layers; // [b - a]
};

struct scratch {
    struct backend *be;
    uint32_t max_rows;
    // All [max_rows][...] f32 in the backend's memory; the widest row of each is said.
    float *norm;                            // hidden
    float *q, *attn;                        // n_heads * head_dim
    float *k, *v;                           // n_kv_heads * head_dim
    float *y;                               // hidden: output of attention or MLP
    float *gate, *up;                       // the widest MLP that is not an expert
    float *router;                          // n_experts
    float *cos[ROPE_SETS], *sin[ROPE_SETS]; // n_freq of the set; NULL: it is not used
    float *q_factor;                        // [max_rows] host memory: how queries grow (q_beta)
    struct qrows *rows;
    // Of the rows that go through the output head.
    uint8_t *head_fault;
    uint32_t *head_pos;
    bool clock;
    uint64_t op_ns[OP_N], mark_ns;
};

// Adds the time since the last call (or since scratch_begin) to one kind of operation, if the clock is on.
void scratch_begin(struct scratch *s);
void scratch_time(struct scratch *s, enum model_op op);
// The same for what ran as one and says that ns of it belong to another kind.
void scratch_time_split(struct scratch *s, enum model_op op, enum model_op other, uint64_t ns);

// Type in which a tensor of this file type, with rows of k values, is kept. Block types stay as they are, but for the
// plain mathematics; types that are only converted become what floats become, or F32 where floats stay floats. Rows
// that are not whole blocks of Q8_0 or Q4_0 become L8, which pads.
enum dtype part_kept_type(const struct run_mode *m, enum dtype file_type, bool is_matrix, uint64_t k);
