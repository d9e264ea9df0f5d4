/* The host's clock, log and processors. */
#include "internal.h"

#include <stdarg.h>

#if defined(_WIN32)
#define WIN32_LEAN_AND_MEAN
#include <windows.h>

double cml__machine_ms(void *unused) {
    LARGE_INTEGER now, second;
    QueryPerformanceCounter(&now);
    QueryPerformanceFrequency(&second);
    (void)unused;
    return 1e3 * (double)now.QuadPart / (double)second.QuadPart;
}

uint32_t cml__processors(void) { return (uint32_t)GetActiveProcessorCount(ALL_PROCESSOR_GROUPS); }
#elif !defined(__wasm__) /* a page has both */
#include <time.h>
#include <unistd.h>

double cml__machine_ms(void *unused) {
    struct timespec now;
    (void)unused;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return 1e3 * (double)now.tv_sec + 1e-6 * (double)now.tv_nsec;
}

uint32_t cml__processors(void) {
    long count = sysconf(_SC_NPROCESSORS_ONLN);
    return count > 0 ? (uint32_t)count : 1;
}
#endif

/* Returns the host's time; a clock that goes back stands still. */
double cml__steady_now(cml_scheduler *s) {
    double now = now_of(s);
    if (now > s->last_ms && !is_infinite(now)) s->last_ms = now;
    return s->last_ms;
}

void cml__log(const cml_scheduler *s, cml_log_level level, const char *format, ...) {
    char message[600];
    va_list values;
    if (s->options.log == NULL) return;
    va_start(values, format);
    vsnprintf(message, sizeof message, format, values);
    va_end(values);
    s->options.log(s->options.log_user, level, message);
}
