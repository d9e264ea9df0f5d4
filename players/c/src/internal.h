/* What the sources of the player share. Functions that one source calls in another begin with
 * `cml__`; everything else is static. */
#ifndef CML_INTERNAL_H
#define CML_INTERNAL_H

#if !defined(_POSIX_C_SOURCE) && !defined(_WIN32)
#define _POSIX_C_SOURCE 200112L
#endif
#if defined(__APPLE__) && !defined(_DARWIN_C_SOURCE)
#define _DARWIN_C_SOURCE /* has _SC_NPROCESSORS_ONLN */
#endif

/* Players compute and decide bit for bit as Python does. */
#if defined(__FAST_MATH__) || (defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ == 2)
#error "compile the player without -ffast-math, and for 32-bit x86 with -msse2 -mfpmath=sse"
#elif defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#elif defined(_MSC_VER)
#pragma float_control(precise, on)
#pragma fp_contract(off)
#endif

#include "cml_backend.h"
#include "format.h"
#include "planning.h"

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ------------------------------------------------------------------ memory.c: memory and errors */

typedef struct block { /* precedes every allocation */
    struct block *next;
    size_t bytes;
} block;

typedef struct heap { /* allocations that are freed together */
    cml_allocator allocator;
    block *blocks;
    int exhausted; /* an allocation has failed */
    cml_counts counts;
} heap;

/* Returns 1 if an allocator has both functions, or neither. */
static inline int is_whole(const cml_allocator *a) {
    return (a->allocate == NULL) == (a->release == NULL);
}

void *cml__heap_alloc(heap *from, uint64_t count, size_t size);
void cml__heap_free(heap *from, const void *memory);
void cml__heap_free_all(heap from);

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
cml_status cml__fail(cml_error *error, cml_status status, const char *format, ...);

#define TEXT_ARGS(t) (int)((t).length < 200 ? (t).length : 200), (t).data /* for %.*s */
#define NO_MEMORY(error, ...) cml__fail(error, CML_ERROR_MEMORY, "no memory for " __VA_ARGS__)
#define ULL(n) (unsigned long long)(n) /* for %llu */
#define TRY(call)                                                                                  \
    do {                                                                                           \
        cml_status tried = (call);                                                                 \
        if (tried != CML_OK) return tried;                                                         \
    } while (0)

/* Compares exactly, without the warning that == gives for floating-point numbers; NaN equals
 * nothing. */
static inline int is_equal(double a, double b) { return a <= b && a >= b; }
/* isinf of mingw's headers warns about doubles. */
static inline int is_infinite(double value) { return fabs(value) > DBL_MAX; }
static inline uint64_t min_u64(uint64_t a, uint64_t b) { return a < b ? a : b; }
static inline uint64_t max_u64(uint64_t a, uint64_t b) { return a > b ? a : b; }

/* ------------------------------------------------------------------ sha256.c, inflate.c, wgsl.c */

void cml__sha256(const uint8_t *data, size_t size, uint8_t digest[32]);

/* Unpacks one zlib stream of exactly `size` bytes; returns 0 if `in` is not such a stream. */
int cml__inflate(const uint8_t *in, size_t packed, uint8_t *out, size_t size);

/* Returns CML_OK if a shader compiler may have the code, else sets `problem`. */
cml_status cml__scan_wgsl(heap *memory, const char *text, size_t length, const char **problem);

/* ------------------------------------------------------------------ file.c: the cooked file */

enum { ARENA, WEIGHTS, OWN, SPACES };            /* the buffers of a plan */
enum { AS_BITS, AS_FLOAT, AS_INTEGER, AS_HALF }; /* what the stored numbers of a constant become */
#define MAX_GROUPS_OF_STEP (65535u * 65535u)     /* what a dispatch of two dimensions can run */

typedef struct span { /* bytes of the file, or of a copy */
    const uint8_t *data;
    uint64_t size;
} span;

typedef struct file {
    span contents, strings, code, values;
    uint32_t section_count, kernel_count, plan_count;
    const section_row *sections; /* a copy, like all records that are read */
    const kernel_row *kernels;
    device_row guess; /* the expected speed of the device */
    const factor_row *factors;
    uint8_t hashed[COOKED_MOST_SECTIONS]; /* 1 if the section's hash has been checked */
    cml_limits totals, limits;            /* what the header states, and what the host allows */
    uint64_t most_bytes;                  /* of the buffers of the largest plan opened so far */
    uint32_t most_steps;
    int only_wgsl; /* SPIR-V is not used: it cannot be checked */
    int trusted;
    heap *memory;
    cml_error *error;
} file;

typedef struct tensor { /* an input or output */
    cml_shape shape;
    binding_row at;
    uint64_t packed_at; /* its offset if all inputs (or outputs) lie one behind the other */
} tensor;

typedef struct tensor_list { /* the inputs, or the outputs */
    tensor *items;
    uint32_t count;
    uint64_t bytes;
} tensor_list;

typedef struct plan { /* a copy of a plan's section, and the tables in it */
    const plan_head *row;
    const plan_step_row *steps;
    const binding_row *bindings;
    const update_row *updates;
    const uint8_t *params;
    tensor_list inputs, outputs;
    cml_text profile;
    const constant_row *constants;
} plan;

#define BAD(f, ...) cml__fail((f)->error, CML_ERROR_CORRUPT, "no whole cooked file: " __VA_ARGS__)

typedef enum section_use { SECTION_OPTIONAL, SECTION_REQUIRED, SECTION_COPIED } section_use;
cml_status cml__find_section(file *f, const char *tag, uint32_t number, section_use use,
                             span *section);
file cml__file_of(const void *bytes, size_t size, const cml_limits *limits, int trusted);
cml_status cml__open_file(file *f);
cml_status cml__open_kernels(file *f);
cml_status cml__open_plan(file *f, uint32_t number, plan *p);
cml_status cml__open_guess(file *f, cml_text device);
cml_status cml__check_file(file *f, int with_code);
cml_status cml__load_code(file *f, const kernel_row *k, const code_row *c, void **code);

int cml__is_text(const file *f, text_row t);

static inline int is_amount(double value) { return value >= 0 && value <= COOKED_MOST_AMOUNT; }
static inline int is_rate(double value) { return value >= 1e-9 && value <= COOKED_MOST_AMOUNT; }

static inline int is_inside(uint64_t at, uint64_t n, uint64_t all) {
    return at <= all && n <= all - at;
}

static inline int is_zero(const void *data, uint64_t size) {
    const uint8_t *p = data;
    while (size > 0 && p[size - 1] == 0) size--;
    return size == 0;
}

static inline int is_same_text(cml_text a, cml_text b) {
    return a.length == b.length && memcmp(a.data, b.data, a.length) == 0;
}

/* Orders texts, or records that begin with one, for qsort and bsearch. */
static inline int compare_texts(const void *a, const void *b) {
    const cml_text *x = a, *y = b;
    if (x->length != y->length) return x->length < y->length ? -1 : 1;
    return memcmp(x->data, y->data, x->length);
}

#define ALL_ZERO(array) is_zero((array), sizeof(array)) /* for reserved bytes */

/* The text of a row that has been checked. */
static inline cml_text text_of(const file *f, text_row t) {
    return (cml_text){(const char *)f->strings.data + t.offset, t.length};
}

/* constants.c: makes a constant's bytes [first, first + bytes), multiples of 4. */
int cml__is_constant(const file *f, const plan *p, uint32_t number);
void cml__make_bytes(const file *f, const constant_row *r, uint64_t first, uint64_t bytes,
                     uint8_t *to);

/* layouts.c: tensors between the plain layout and the one of the device. */
void cml__to_layout(const cml_shape *shape, const void *plain, uint8_t *stored);
uint16_t cml__to_half(float value);
void cml__from_layout(const cml_shape *shape, const uint8_t *stored, void *plain);

/* ------------------------------------------------------------------ costs.c: the cost model */

enum { CURVE_LISTS = 1024, BUCKETS = 65 };

typedef struct timed_size { /* the last times of about so many workgroups, as logarithms of ms */
    double log_count, log_times[PLAN_LAST]; /* the newest time is the last one */
    uint32_t kept;
    uint64_t samples; /* 0: no sample yet */
} timed_size;

typedef struct curve { /* the time over the number of workgroups, of one cost key */
    struct curve *next;
    uint64_t key, samples;
    timed_size sizes[BUCKETS]; /* by the bucket of the number of workgroups */
    /* the sizes that count, with ascending times; none are prepared if `ordered` is 0 */
    double at[BUCKETS], log_ms[BUCKETS];
    uint32_t ordered;
} curve;

typedef struct step {
    uint32_t groups;
    double work, factor; /* first guess: ms per workgroup, and a factor of the kernel */
    uint64_t key;        /* steps of one key cost the same per workgroup */
    curve *curve;
} step;

typedef struct slice { /* workgroups [first, first + count) of a step */
    struct job *job;
    step *step;
    uint32_t first, count;
    double ms;        /* predicted */
    uint64_t samples; /* times of about so many workgroups */
    int settled;      /* 1 if they are enough */
    int alone;        /* 1 if it has a timing of its own */
    uint32_t place;   /* of its workgroups in the network's ranges */
} slice;

typedef struct cost_model {
    double launch_ms; /* 0 until a network brings a first guess */
    double least_ms;  /* the least settled time of any step */
    double drift, error;
    double ratios[PLAN_RATIOS]; /* logarithms of measured over guessed times, of new steps */
    uint32_t ratio_count;
    curve *curves[CURVE_LISTS]; /* hashed by key */
    /* by how much recent frames exceeded their prediction, in order of time and of size */
    double excess[PLAN_WINDOW], sorted[PLAN_WINDOW], over_share;
    uint32_t next, count;
} cost_model;

uint64_t cml__key_of(cml_text text);
curve *cml__curve_of(heap *memory, cost_model *m, uint64_t key);
double cml__predict(const cost_model *m, const step *s, uint32_t count);
uint32_t cml__groups_within(const cost_model *m, const step *s, uint32_t limit, double ms);
uint32_t cml__bucket_of(uint32_t count);
int cml__is_settled(const step *s, uint32_t count);
void cml__learn(cost_model *m, slice *slices, uint32_t n, double ms);
void cml__record_excess(cost_model *m, double predicted, double measured, int hopeless);
double cml__aim_for(const cost_model *m, double budget);
double cml__median(const double *values, uint32_t n);

static inline int has_samples(const step *s) { return s->curve->samples > 0; }

/* ------------------------------------------------------------------ jobs.c, frame.c: scheduling */

enum {
    MAX_PRODUCERS = 16, /* tensors that a job takes from other jobs */
    MAX_GROUPS = 64,    /* slices of a frame that are timed separately */
    IN_FLIGHT = 16,     /* frames whose timings may still arrive */
    BEHIND_ALL = 2,     /* the device is behind, whatever another planner decides */
    SLOT_NAME = 48      /* bytes of a slot's name, with its end mark */
};

typedef struct job job;
typedef struct network network;

enum {
    TIMED = 12,       /* passes of a frame with a timestamp */
    LEAD = 2,         /* empty passes before them, if they are timed by their ends */
    EMPTY = 15,       /* times of empty passes that are kept */
    RING = 8,         /* frames whose readback may be under way */
    SLOT_BYTES = 256, /* of a frame's timestamps and receipt */
    PARTS = 64,       /* slices of a frame that are a part of a step */
    MAX_USES = 96     /* ranges that commands used since the last barrier */
};

typedef enum readback_state {
    READBACK_FREE,
    READBACK_COPIED,   /* a frame copies into it */
    READBACK_REQUESTED /* it is being mapped, or is mapped */
} readback_state;

typedef struct readback {      /* a buffer on its way to the host: outputs, or timestamps */
    cml_buffer *buffer, *from; /* `from` holds the outputs of the job that is using this */
    uint64_t frame;            /* the frame that copies */
    readback_state state;
    int used;
    uint32_t passes; /* of the frame, if it holds timestamps */
} readback;

typedef struct buffer_use { /* a range that a command of this frame reads or writes */
    cml_range range;
    int is_write;
} buffer_use;

typedef struct job_source { /* of a job's input */
    int is_set;
    cml_buffer *buffer; /* NULL: the job's `data`, or the output of `producer` */
    uint64_t at;        /* the offset in the buffer, or among the producer's outputs */
    job *producer;
} job_source;

struct network {
    heap memory;
    step *steps;
    uint32_t step_count;
    const network *exclusive; /* one job at a time runs on networks that share this */
    double *after;            /* predicted ms of the steps from each one on */
    uint64_t after_frame;     /* the frame of that prediction, plus 1 */
    cml_scheduler *owner;     /* runs its jobs, and has it in its list; NULL before the first job */
    const double *load_ms;    /* times of the steps that were measured at load; NULL: none were */
    int is_wanted, is_ready;
    int is_unloaded; /* it is freed when the frame that may use it ends */
    file f;          /* its bytes are not needed any more once the network is built */
    network *next;
    cml_scheduler *scheduler;
    cml_net *handle;
    plan p;
    uint32_t constants_there; /* constants that have been uploaded */
    uint64_t uploaded;        /* bytes of the next one */
    uint8_t *staging;
    cml_buffer *spaces[SPACES], *uniforms; /* uniforms: the parameters of all steps */
    cml_buffer *ranges;       /* the workgroups of every whole step, then of PARTS parts of steps */
    uint32_t parts;           /* of steps, in this frame */
    uint32_t compiled, bound; /* steps that have their pipeline, and those with bindings */
    cml_pipeline **pipelines; /* by kernel */
    cml_bindings **bindings;  /* by step */
    cml_scope *scope;
    uint32_t slot_mask; /* frames of the ring that changed its variables */
    int state_lost;     /* one of those frames never ran */
    readback *results;  /* options.max_results of them */
};

typedef struct job_progress {
    cml_state state;
    uint32_t step, group;
    double given_ms, virtual_ms;
} job_progress;

struct job {
    cml_job number; /* its handle; later jobs have larger ones */
    int paused, has_deadline, released, read_requested;
    network *net;
    job_progress run, saved; /* saved: before the open frame, which the host may abandon */
    uint64_t saved_in;       /* the number of that frame, plus 1 */
    double priority, deadline_at, last_served_ms;
    char slot[SLOT_NAME], error[200];
    job *producers[MAX_PRODUCERS]; /* they keep their outputs until this job has copied them */
    uint32_t producer_count, consumers;
    int urgent; /* 2: its deadline can be met, 1: missed by little; valid within a frame */
    double remaining, laxity;
    uint8_t *data; /* inputs that came from the host; stays with the place in the pool */
    uint64_t room; /* bytes of `data` */
    job_source sources[COOKED_MOST_INPUTS];
    uint32_t source_count;
    readback *result;
    uint32_t slot_mask; /* frames of the ring that worked on it */
};

typedef struct work { /* a frame's slices, until their timings have been learned from */
    cml_report report;
    int is_replayed; /* another planner decided */
    slice *slices;
    uint32_t slice_count;                   /* 0: nothing more is to be learned */
    uint32_t group_count, ends[MAX_GROUPS]; /* slices that are timed together */
    double ms[MAX_GROUPS];                  /* measured; below 0 until it is known */
} work;

struct cml_scheduler {
    heap memory;
    cost_model model;
    cml_policy policy;
    double frame_ms, rate, now;
    uint32_t granule, max_groups, max_slices, max_jobs;
    uint64_t frame;
    uint64_t newest; /* the newest frame whose timings have arrived, plus 1 */
    cml_job numbers; /* handles given so far */
    job *jobs;       /* the pool */
    job **live;      /* jobs that have not ended, oldest first */
    double left[2];  /* least virtual time of jobs that ended in this frame: normal, idle */
    network *nets;
    job **candidates, **starts; /* jobs that could run in this frame, and jobs that start in it */
    const job *starved;         /* comes first, whatever the policy */
    uint32_t live_count, candidate_count, start_count, measured_count;
    work works[IN_FLIGHT], *work; /* works: by frame number; work: the newest */
    cml_report measured[IN_FLIGHT];
    int open;                /* between encode and end_frame */
    int wall_clock;          /* no timestamps: learns from the frame times */
    int has_ended, skip_due; /* of that learning */
    double ended_ms, usual_ms, back_off;
    double interval_ms; /* between frames, smoothed */
    uint64_t intervals;
    uint32_t without, since_skip;      /* frames in a row that ran nothing; since the last skip */
    void (*planner)(cml_scheduler *s); /* replays decide otherwise */
    void (*order)(cml_scheduler *s);   /* sorts the candidates in place of a cml_policy */
    void (*prepare)(cml_scheduler *s, network *net, double ms);
    int (*start)(cml_scheduler *s, job *j); /* returns 0 if the job has to wait, or has ended */
    int (*finish)(cml_scheduler *s, job *j);
    cml_options options;
    cml_backend backend;
    cml_device_info info;
    cml_net *unloaded; /* handles of networks that are gone */
    int lost;
    double last_ms, budget_ms;
    uint32_t stride; /* bytes from slice to slice in the `ranges` of a network */
    uint32_t frames_before_read;
    cml_scope *scope;
    cml_buffer *resolved; /* timestamps and receipts */
    readback ring[RING];
    double empty_ms[EMPTY]; /* the last times of empty passes, in a ring */
    uint32_t empty_count;
    cml_slice *reported;
    cml_report refusal; /* of a call that encodes nothing */
    void *commands;     /* of the host, for this frame */
    buffer_use uses[MAX_USES];
    uint32_t use_count;
    int is_ordered; /* a barrier separates this frame from earlier ones */
};

/* Calls a function of the backend's table that takes more than `user`. */
#define BACKEND(s, function, ...) (s)->backend.function((s)->backend.user, __VA_ARGS__)
/* Loops over all places of the pool, networks, slices of a frame and frames of the ring. */
#define EACH_JOB(s, j) for (job *j = (s)->jobs; j < (s)->jobs + (s)->max_jobs; j++)
#define EACH_NET(s, n) for (network *n = (s)->nets; n != NULL; n = n->next)
#define EACH_SLICE(w, one)                                                                         \
    for (slice *one = (w)->slices; one < (w)->slices + (w)->slice_count; one++)
#define EACH_SLOT(s, slot) for (readback *slot = (s)->ring; slot < (s)->ring + RING; slot++)

int cml__init_core(cml_scheduler *s);
int cml__adopt_net(cml_scheduler *s, network *net);
void cml__unlink_net(cml_scheduler *s, const network *net);
int cml__is_at_work(const network *net);
job *cml__find_free_job(cml_scheduler *s);
void cml__enqueue(cml_scheduler *s, job *j);
void cml__insert_live(cml_scheduler *s, job *j);
void cml__end_job(cml_scheduler *s, job *j, cml_state state, const char *why);
void cml__drop_producers(job *j);
double cml__remaining_ms(cml_scheduler *s, job *j);
void cml__sort_candidates(cml_scheduler *s);
void cml__use_decision(cml_scheduler *s, const slice *decision, uint32_t count);
double cml__eta_ms(cml_scheduler *s, job *j);

void cml__begin_frame(cml_scheduler *s, double now, double budget, double aim, int rests,
                      int behind);
void cml__finish_jobs(cml_scheduler *s);
void cml__record_timing(cml_scheduler *s, uint64_t frame, uint32_t group, double ms);
void cml__end_frame(cml_scheduler *s, double now);
void cml__abandon_frame(cml_scheduler *s);

static inline int is_over(const job *j) {
    return j->run.state != CML_STATE_QUEUED && j->run.state != CML_STATE_RUNNING;
}

static inline int has_failed(const job *j) { return j->run.state >= CML_STATE_CANCELLED; }
static inline int is_idle(const job *j) { return !(j->priority > 0); }

/* ------------------------------------------------------------------ host.c: the clock, the log */

double cml__machine_ms(void *unused);
uint32_t cml__processors(void);
double cml__steady_now(cml_scheduler *s);

#if defined(__GNUC__)
__attribute__((format(printf, 3, 4)))
#endif
void cml__log(const cml_scheduler *s, cml_log_level level, const char *format, ...);

static inline double now_of(const cml_scheduler *s) {
    return s->options.now_ms(s->options.now_user);
}
static inline cml_text text_from(const char *data) { return (cml_text){data, strlen(data)}; }

/* ------------------------------------------------------------------ commands.c: the backend */

void cml__begin_commands(cml_scheduler *s, void *commands);
void cml__order(cml_scheduler *s, const cml_range *ranges, uint32_t reads, uint32_t writes);
void cml__copy(cml_scheduler *s, const cml_range *from, cml_buffer *to, uint64_t offset);
void cml__write(cml_scheduler *s, cml_buffer *to, uint64_t offset, const void *data,
                uint64_t bytes);
cml_buffer *cml__new_buffer(cml_scheduler *s, heap *of, cml_scope *scope, cml_usage usage,
                            uint64_t bytes);
void cml__drop_buffer(cml_scheduler *s, cml_buffer **buffer);
void cml__map_readback(const cml_scheduler *s, readback *r, uint32_t frames);
cml_status cml__poll_readback(const cml_scheduler *s, const readback *r, const uint8_t **data);
void cml__cancel_readback(const cml_scheduler *s, readback *r);

/* ------------------------------------------------------------------ network.c, submit.c */

struct cml_net { /* a handle: stays until cml_destroy, so that its use after cml_unload is found */
    network *network; /* NULL: unloaded */
    cml_net *next;    /* of those that are unloaded */
    heap memory;
};

#define NO_NETWORK "the network is unloaded, or was never loaded: call cml_load_cooked()"

/* Returns the network of a handle, which may be NULL; NULL if it is unloaded. */
static inline network *network_of(const cml_net *net) { return net != NULL ? net->network : NULL; }

cml_status cml__load(cml_scheduler *s, const file *opened, cml_net **net, cml_error *error);
cml_status cml__build_net(network *n, double ms, uint64_t bytes, uint32_t groups);
void cml__take_slots(cml_scheduler *s);
void cml__dispatch(cml_scheduler *s, const network *n, uint32_t index, uint32_t place,
                   uint32_t count);
cml_range cml__range_of(const network *n, const binding_row *at);
void cml__free_net(network *n);
void cml__forget_net(cml_scheduler *s, const network *net);
void cml__remove_net(cml_scheduler *s, network *net);
void cml__remove_unloaded_nets(cml_scheduler *s);
void cml__reclaim_jobs(cml_scheduler *s);
job *cml__find_job(const cml_scheduler *s, cml_job handle);
void cml__prepare_net(cml_scheduler *s, network *net, double ms);
void cml__copy_updates(cml_scheduler *s, const network *n);
int cml__start_job(cml_scheduler *s, job *j);
int cml__finish_job(cml_scheduler *s, job *j);
cml_status cml__find_read(const cml_scheduler *s, job *j, const char *output, const tensor **found,
                          const uint8_t **data, cml_error *error);

#endif
