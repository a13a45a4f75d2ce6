// GGUF, the file format of llama.cpp and its kin: a header with metadata and a list of tensors, then their data. This
// folder reads and writes the header; it does no I/O and knows no model. Versions 2 and 3, little-endian. Source: the
// GGUF specification in the ggml project (docs/gguf.md).
//
// A struct gguf looks into the bytes that it was made from, which must outlive it; nothing but its tables is copied.
// Read-only after it was made: any thread.
#pragma once
#include "base/buf.h"
#include "base/err.h"
#include <stdbool.h>
#include <stdint.h>

enum gguf_type { // as they are written
    GGUF_U8,
    GGUF_I8,
    GGUF_U16,
    GGUF_I16,
    GGUF_U32,
    GGUF_I32,
    GGUF_F32,
    GGUF_BOOL,
    GGUF_STRING,
    GGUF_ARRAY,
    GGUF_U64,
    GGUF_I64,
    GGUF_F64,
    GGUF_TYPES
};

enum { GGUF_DIMS = 4, GGUF_ALIGNMENT = 32 };

struct gguf_string { // not NUL-terminated
    const char *text;
    uint64_t len_bytes;
};

struct gguf_value {
    struct gguf_string key;
    enum gguf_type type, item_type; // item_type: of an array, which holds no arrays
    uint64_t n_items;               // of an array; else 1
    const uint8_t *data;            // of the first item
    uint64_t data_bytes;            // of all items as the file has them
};

struct gguf_tensor {
    struct gguf_string name;
    uint32_t n_dims;
    uint64_t dim[GGUF_DIMS]; // innermost first, as the file has them; 1 beyond n_dims
    uint32_t type;           // the file's number (ggml_type); dtype_from_gguf knows those that Loom has
    uint64_t offset;         // of its data, from gguf_data_offset
};

struct gguf;

// Reads a whole header: every length is checked against what is there before it is believed. ERR_FORMAT and ERR_LIMIT
// name the key or the tensor. Whether tensors' data lies inside the file is not looked at here: sizes belong to types.
int gguf_new(const uint8_t *data, uint64_t bytes, struct gguf **g, struct err *e) MUST_CHECK;
void gguf_free(struct gguf *g);

uint32_t gguf_version(const struct gguf *g);
uint64_t gguf_data_offset(const struct gguf *g); // where tensor data starts: aligned, at most the file's size
uint32_t gguf_alignment(const struct gguf *g);
uint64_t gguf_n_values(const struct gguf *g);
const struct gguf_value *gguf_value_at(const struct gguf *g, uint64_t i);
uint64_t gguf_n_tensors(const struct gguf *g);
const struct gguf_tensor *gguf_tensor_at(const struct gguf *g, uint64_t i);

// NULL: no such key.
const struct gguf_value *gguf_find(const struct gguf *g, const char *key);
// The value of a key. A key that is missing leaves *out as it is; one of another kind, or out of [lo, hi], is
// ERR_FORMAT that names it. Integers of any width and sign count as integers; floats of both widths as numbers,
// integers too.
int gguf_get_u32(const struct gguf *g, const char *key, uint32_t lo, uint32_t hi, uint32_t *out,
                 struct err *e) MUST_CHECK;
int gguf_get_number(const struct gguf *g, const char *key, double *out, struct err *e) MUST_CHECK;
int gguf_get_bool(const struct gguf *g, const char *key, bool *out, struct err *e) MUST_CHECK;
int gguf_get_string(const struct gguf *g, const char *key, struct gguf_string *out, struct err *e) MUST_CHECK;
// The id of a token. *out is -1 where the key is missing or means that there is none: -1, of 32 bits also without a
// sign. Else it is 0 or more; whether the vocabulary has it is the caller's to check.
int gguf_get_id(const struct gguf *g, const char *key, int32_t *out, struct err *e) MUST_CHECK;
// Item i of an array (or of a single value with i = 0). False: of another kind.
bool gguf_item_integer(const struct gguf_value *v, uint64_t i, int64_t *out);
bool gguf_item_number(const struct gguf_value *v, uint64_t i, double *out);
bool gguf_item_bool(const struct gguf_value *v, uint64_t i, bool *out);
// Items of a string array lie one behind the other: *at is where the next one starts; begin with v->data. False: there
// is no more, or these are no strings.
bool gguf_next_string(const struct gguf_value *v, const uint8_t **at, struct gguf_string *out);
const char *gguf_type_name(enum gguf_type t);

// ---- Writing, version 3. Keys and tensors are added in any order, then the header is put out; data follows it, each
// tensor at the offset that gguf_put_tensor gave, padded to GGUF_ALIGNMENT. A key or tensor that is there already is
// ERR_FORMAT; a header of more than LIMIT_GGUF_HEADER bytes ERR_NOMEM.
struct gguf_writer;
int gguf_writer_new(struct gguf_writer **w) MUST_CHECK;
void gguf_writer_free(struct gguf_writer *w);
int gguf_put_u32(struct gguf_writer *w, const char *key, uint32_t v) MUST_CHECK;
int gguf_put_u64(struct gguf_writer *w, const char *key, uint64_t v) MUST_CHECK;
int gguf_put_f32(struct gguf_writer *w, const char *key, float v) MUST_CHECK;
int gguf_put_bool(struct gguf_writer *w, const char *key, bool v) MUST_CHECK;
int gguf_put_string(struct gguf_writer *w, const char *key, const char *text, size_t len_bytes) MUST_CHECK;
// items: n values of a fixed-size type, as in memory; or n struct gguf_string.
int gguf_put_array(struct gguf_writer *w, const char *key, enum gguf_type item_type, const void *items,
                   uint64_t n) MUST_CHECK;
int gguf_put_value(struct gguf_writer *w, const struct gguf_value *v) MUST_CHECK; // a copy out of another file
// (general.alignment is left out: this file has its own)
// dim innermost first; bytes: of its data. *offset: where that has to start, from the end of the header.
int gguf_put_tensor(struct gguf_writer *w, const char *name, const uint64_t *dim, uint32_t n_dims, uint32_t type,
                    uint64_t bytes, uint64_t *offset) MUST_CHECK;
// The header with its padding: what comes next in the file is the data of the first tensor.
int gguf_writer_header(const struct gguf_writer *w, struct buf *out) MUST_CHECK;
uint64_t gguf_writer_data_bytes(const struct gguf_writer *w); // of all tensors, padding included
