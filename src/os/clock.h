// Time that only goes forward, for time-outs and measurements; it does not tell the date. Thread-safe.
#pragma once
#include <stdint.h>

uint64_t clock_now_ns(void);
uint64_t clock_now_us(void);
uint64_t clock_now_ms(void);
// Sleeps for at least ms, signals or not.
void clock_sleep_ms(uint64_t ms);
