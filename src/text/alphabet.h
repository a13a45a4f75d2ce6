// The byte-level alphabet of GPT-2's tokenizer and all that followed it: a printable character for each byte, in which
// vocabularies spell their tokens.
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { ALPHABET_LETTER_BYTES = 2 }; // of a letter in UTF-8, at most

// The letter of a byte in UTF-8; returns its length.
size_t alphabet_letter(int byte, char out[ALPHABET_LETTER_BYTES]);
// Bytes that a spelling stands for, written to out (at most as long as the spelling). False if a character is not of
// the alphabet.
bool alphabet_read(const char *spelling, size_t len_bytes, uint8_t *out, size_t *out_len_bytes);
