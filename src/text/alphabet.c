#include "text/alphabet.h"

enum { LETTERS_END = 256 + 68 }; // all letters are below this

static bool prints(int byte) { return (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae; }

// Printable bytes of Latin-1 stand for themselves, the others for 256, 257, ... in order.
static int letter_of(int byte) {
    if (prints(byte)) return byte;
    int n = 0;
    for (int b = 0; b < byte; b++) n += !prints(b);
    return 256 + n;
}

static int byte_of(unsigned c) {
    if (c < 256) return prints((int)c) ? (int)c : -1;
    int n = 256;
    for (int b = 0; b < 256; b++)
        if (!prints(b) && (unsigned)n++ == c) return b;
    return -1;
}

size_t alphabet_letter(int byte, char out[ALPHABET_LETTER_BYTES]) {
    int c = letter_of(byte);
    out[0] = (char)c;
    if (c < 0x80) return 1;
    out[0] = (char)(0xc0 | c >> 6);
    out[1] = (char)(0x80 | (c & 0x3f));
    return 2;
}

bool alphabet_read(const char *spelling, size_t len_bytes, uint8_t *out, size_t *out_len_bytes) {
    size_t n = 0;
    for (size_t i = 0; i < len_bytes; i++) {
        unsigned c = (uint8_t)spelling[i];
        if (c >= 0x80) { // valid UTF-8, of which only the two-byte part reaches into the alphabet
            if (c > 0xc5 || i + 1 == len_bytes) return false;
            c = (c & 0x1f) << 6 | ((uint8_t)spelling[++i] & 0x3f);
        }
        int byte = c < LETTERS_END ? byte_of(c) : -1;
        if (byte < 0) return false;
        out[n++] = (uint8_t)byte;
    }
    *out_len_bytes = n;
    return true;
}
