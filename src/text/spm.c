#include "text/spm.h"
#include "base/limits.h"
#include <string.h>

enum { MODEL_PIECE = 1, PIECE_TEXT = 1, PIECE_SCORE = 2, PIECE_TYPE = 3, TEXT_MAX = LIMIT_TOKEN_BYTES * 2 };

static bool varint(struct spm_message *m, uint64_t *value) {
    *value = 0;
    for (int shift = 0; shift < 64 && m->at < m->end; shift += 7) {
        uint8_t b = *m->at++;
        *value |= (uint64_t)(b & 0x7f) << shift;
        if (b < 0x80) return true;
    }
    return false;
}

static bool fixed(struct spm_message *m, size_t n, uint64_t *value) {
    if ((size_t)(m->end - m->at) < n) return false;
    *value = 0;
    for (size_t i = 0; i < n; i++) *value |= (uint64_t)m->at[i] << (8 * i);
    m->at += n;
    return true;
}

bool spm_next(struct spm_message *m, struct spm_field *f, bool *broken) {
    uint64_t tag, n;
    *f = (struct spm_field){0};
    if (m->at == m->end) return false;
    *broken = true;
    if (!varint(m, &tag) || tag >> 3 == 0 || tag >> 3 > UINT32_MAX) return false;
    f->number = (uint32_t)(tag >> 3);
    switch (tag & 7) {
    case 0:
        if (!varint(m, &f->value)) return false;
        break;
    case 1:
        if (!fixed(m, 8, &f->value)) return false;
        break;
    case 2:
        if (!varint(m, &n) || n > (uint64_t)(m->end - m->at)) return false;
        f->bytes = (struct spm_message){m->at, m->at + n};
        m->at += n;
        break;
    case 5:
        if (!fixed(m, 4, &f->value)) return false;
        break;
    default:
        return false;
    }
    *broken = false;
    return true;
}

static int read_piece(struct spm_message m, struct spm_piece *piece, uint32_t id, struct err *e) {
    struct spm_field f;
    bool broken = false;
    *piece = (struct spm_piece){.text = "", .type = SPM_NORMAL};
    while (spm_next(&m, &f, &broken)) {
        if (f.number == PIECE_TEXT && f.bytes.end - f.bytes.at <= TEXT_MAX) {
            piece->text = (const char *)f.bytes.at;
            piece->len_bytes = (uint32_t)(f.bytes.end - f.bytes.at);
        }
        uint32_t bits = (uint32_t)f.value;
        if (f.number == PIECE_SCORE) memcpy(&piece->score, &bits, sizeof bits);
        if (f.number == PIECE_TYPE && f.value >= SPM_NORMAL && f.value <= SPM_BYTE)
            piece->type = (enum spm_type)f.value;
    }
    if (broken || piece->len_bytes == 0)
        return err_set(e, ERR_FORMAT, "pieces[%u] is broken, empty or longer than %d bytes", id, TEXT_MAX);
    return ERR_OK;
}

int spm_next_piece(struct spm_message *model, uint32_t *id, struct spm_piece *piece, bool *found, struct err *e) {
    struct spm_field f;
    bool broken = false;
    *found = false;
    while (spm_next(model, &f, &broken)) {
        if (f.number != MODEL_PIECE) continue;
        *found = true;
        return read_piece(f.bytes, piece, (*id)++, e);
    }
    return broken ? err_set(e, ERR_FORMAT, "this is no protobuf of a SentencePiece model") : ERR_OK;
}
