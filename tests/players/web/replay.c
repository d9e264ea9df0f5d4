/* What tools/replay.c takes of a page when it is compiled to WebAssembly: the functions of
 * mathematics that core.c takes too. */
#define IMPORT(name) __attribute__((import_module("cml"), import_name(#name)))

IMPORT(log) double page_log(double x);
IMPORT(log2) double page_log2(double x);
IMPORT(exp) double page_exp(double x);
IMPORT(pow) double page_pow(double x, double y);
double log(double x);
double log2(double x);
double exp(double x);
double pow(double x, double y);
double cml__machine_ms(void *unused);
unsigned cml__processors(void);

double log(double x) { return page_log(x); }
double log2(double x) { return page_log2(x); }
double exp(double x) { return page_exp(x); }
double pow(double x, double y) { return page_pow(x, y); }

double cml__machine_ms(void *unused) {
    (void)unused;
    return 0;
}

unsigned cml__processors(void) { return 1; }
