/* Plays cooked networks (docs/cooked.md) inside the frames of a renderer, within a budget of GPU
 * milliseconds, on the renderer's own device. C99 without dependencies: a backend, cml_webgpu.h or
 * one of your own (cml_backend.h), has the functions of the device.
 * docs/ship_it.md has the lines that do it, and threads, device lost, memory, Dawn.
 *
 * Functions that can fail return a cml_status, and describe the problem in a cml_error, which may
 * be NULL. Where nothing else is said, the calls of one scheduler belong to one thread, and
 * pointers other than `error`, `options` of cml_submit and `limits` must not be NULL; a cml_net
 * that is NULL counts as unloaded. The player does not read a file's section `meta`, a description
 * for tools. */
#ifndef CML_H
#define CML_H

#include <stddef.h>
#include <stdint.h>

#define CML_VERSION_MAJOR 0
#define CML_VERSION_MINOR 1
#define CML_VERSION_PATCH 0
#define CML_VERSION "0.1.0"

/* Define CML_SHARED if the player is a shared library, and CML_BUILD besides when compiling it. */
#if !defined(CML_SHARED)
#define CML_API
#elif defined(_WIN32) && defined(CML_BUILD)
#define CML_API __declspec(dllexport)
#elif defined(_WIN32)
#define CML_API __declspec(dllimport)
#else
#define CML_API __attribute__((visibility("default")))
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Returns the version of the library, as CML_VERSION is that of the header. */
CML_API const char *cml_version(void);

typedef enum cml_status {
    CML_OK = 0,
    CML_PENDING,       /* not yet: ask again in a later frame */
    CML_ERROR_CORRUPT, /* not a cooked file, or a damaged one */
    CML_ERROR_STALE,   /* no profile of the file fits the device, or the player is too old for it */
    CML_ERROR_INPUT,   /* the caller's mistake: an unknown name, a wrong size, an old handle */
    CML_ERROR_MEMORY,  /* the allocator or the device has no memory left */
    CML_ERROR_FULL,    /* there are options.max_jobs jobs: release some */
    CML_ERROR_DEVICE,  /* the device refused something, or is lost */
    CML_ERROR_LIMIT    /* the file, unpacked, exceeds cml_limits */
} cml_status;

/* Returns the enumerator's name, such as "CML_ERROR_STALE"; never NULL. */
CML_API const char *cml_status_name(cml_status status);

typedef struct cml_error {
    cml_status status;
    char text[480]; /* one line: the problem, expected and got, the next step */
} cml_error;

typedef struct cml_text { /* UTF-8 without an end mark */
    const char *data;
    size_t length;
} cml_text;

typedef enum cml_type { CML_TYPE_SCALAR, CML_TYPE_INTEGER, CML_TYPE_LOGICAL } cml_type;
typedef enum cml_layout { CML_LAYOUT_PLAIN, CML_LAYOUT_C4, CML_LAYOUT_C4H } cml_layout;

typedef struct cml_shape { /* an input or output of a network */
    cml_text name;
    cml_type type;     /* float32, int32 or uint32 */
    cml_layout layout; /* docs/cooked.md describes the layouts */
    uint32_t rank, extents[8];
    uint64_t elements, bytes; /* bytes on the device, in that layout */
} cml_shape;

/* The source of host memory, for all threads that call the player; both functions NULL: the C
 * library. With one function alone each allocation fails. */
typedef struct cml_allocator {
    void *(*allocate)(void *user, size_t bytes); /* aligned like malloc; NULL: none is left */
    void (*release)(void *user, void *block, size_t bytes);
    void *user;
} cml_allocator;

/* The most that a file may take when it is unpacked: a small file can state much. Larger files are
 * refused before anything is unpacked. 0: the default, which for a trusted file is no limit. */
typedef struct cml_limits {
    uint64_t code_bytes;   /* of all kernels; 64 MiB */
    uint64_t device_bytes; /* of a plan's buffers; 2 GiB */
    uint32_t kernels;      /* 4096 */
    uint32_t steps;        /* of a plan; 16384 */
} cml_limits;

/* Checks a whole file as cml_load_cooked checks an untrusted one; needs no device. `limits` and
 * `allocator` may be NULL.
 * Errors: CORRUPT; STALE: another format; LIMIT; MEMORY. */
CML_API cml_status cml_check(const void *bytes, size_t size, const cml_limits *limits,
                             const cml_allocator *allocator, cml_error *error);

typedef struct cml_scheduler cml_scheduler;
typedef struct cml_net cml_net;
typedef uint64_t cml_job; /* a handle, which a scheduler never gives twice; 0 is no job */

typedef enum cml_policy {
    CML_POLICY_LEAST_LAXITY,
    CML_POLICY_FAIR_SHARE,
    CML_POLICY_BY_PRIORITY
} cml_policy;

/* Why a frame runs no more slices. */
typedef enum cml_reason {
    CML_REASON_NOTHING_TO_DO,
    CML_REASON_BUDGET,
    CML_REASON_WAITING_FOR_GPU, /* options.max_frames_in_flight are under way */
    CML_REASON_PREPARING,       /* a network is being built */
    CML_REASON_ALL_WAITING,     /* jobs are paused, or wait for other jobs */
    CML_REASON_FRAME_NOT_ENDED, /* cml_end_frame is missing: nothing was encoded */
    CML_REASON_DEVICE_ERROR     /* the device is lost: nothing was encoded */
} cml_reason;

typedef struct cml_report { /* what a frame ran */
    uint64_t frame;
    double now_ms, budget_ms;
    double aim_ms;       /* the time that was planned for, below the budget by a learned margin */
    double predicted_ms; /* of the slices */
    double measured_ms;  /* below 0 until it is known, some frames later */
    double cpu_ms;       /* spent in cml_encode */
    cml_reason reason;
    uint32_t slices, finished; /* slices that were encoded, jobs that ended */
} cml_report;

typedef struct cml_slice { /* workgroups [first, first + count) of a step */
    cml_job job;
    uint32_t step, first, count;
    double predicted_ms;
    cml_text op, title;
} cml_slice;

typedef enum cml_state {
    CML_STATE_GONE, /* released, or never given */
    CML_STATE_QUEUED,
    CML_STATE_RUNNING,
    CML_STATE_DONE,
    CML_STATE_CANCELLED,
    CML_STATE_FAILED
} cml_state;

typedef struct cml_counts { /* objects created so far; constant in steady state */
    uint64_t host_blocks, buffers, bind_groups, pipelines;
} cml_counts;

enum { CML_TRUSTED = 1 }; /* flag of a file of your own: no run-time checks, 2 to 3 times as fast */

typedef struct cml_backend cml_backend; /* cml_backend.h */

typedef enum cml_log_level { CML_LOG_INFO, CML_LOG_WARNING, CML_LOG_ERROR } cml_log_level;

typedef struct cml_options { /* 0 and NULL choose the default */
    cml_backend *backend;    /* required; copied; of this scheduler alone, which destroys it */
    cml_allocator allocator;
    double (*now_ms)(void *user); /* a steady clock */
    void *now_user;
    /* Receives messages: which profile a network got and why, failed jobs. May be called from any
     * thread that calls the player. */
    void (*log)(void *user, cml_log_level level, const char *message);
    void *log_user;
    double frame_ms;   /* the target frame time; 1000 / 60 */
    double budget_ms;  /* of a frame that cml_encode states no other for; 4 */
    double over_share; /* the share of frames that may exceed their budget; 0.01 */
    cml_policy policy;
    uint32_t max_jobs;             /* 64 */
    uint32_t max_slices;           /* of a frame; 256 */
    uint32_t max_results;          /* jobs of one network whose outputs are kept; 8 */
    uint32_t max_frames_in_flight; /* 4; no new work while the timings of so many are awaited */
    cml_limits limits;             /* of files to load */
    uint32_t granule; /* workgroups that run at once; 1, or the processors of a software driver */
} cml_options;

/* Creates a scheduler, which destroys the backend in the end, also if this fails.
 * Errors: INPUT: options.backend is NULL or lacks functions, the allocator has one function of two,
 * or a number is out of its range; MEMORY; DEVICE. *scheduler is NULL then. INPUT too: an earlier
 * call took the backend, to which nothing happens then: fill in another table for each scheduler.
 */
CML_API cml_status cml_create(const cml_options *options, cml_scheduler **scheduler,
                              cml_error *error);

/* Unloads networks that ever had a job; unload others before, or their memory is lost. Then
 * destroys the backend. NULL is ignored. */
CML_API void cml_destroy(cml_scheduler *scheduler);

/* Reads a network of a cooked file and chooses the first profile that fits the device. `bytes` must
 * stay until cml_build has returned CML_OK. Any thread may load, and build, a network that no other
 * thread uses yet.
 * Errors: CORRUPT; STALE: no profile fits (the text says why for each); LIMIT: of an untrusted
 * file; MEMORY; DEVICE. *net is NULL then. */
CML_API cml_status cml_load_cooked(cml_scheduler *scheduler, const void *bytes, size_t size,
                                   uint32_t flags, cml_net **net, cml_error *error);

/* Uploads, builds pipelines and binds for about `ms`: behind a loading screen. Returns CML_PENDING
 * until all is done, then CML_OK. cml_encode builds the networks of waiting jobs too, a little in
 * every frame.
 * Errors: DEVICE: it refused a kernel; CORRUPT: a damaged kernel; MEMORY; INPUT: it is unloaded. */
CML_API cml_status cml_build(cml_net *net, double ms, cml_error *error);

/* Gives the network's variables the values that they have in the file, of which `bytes` must still
 * be there. A job that is running still writes its own: call it between jobs, and outside of
 * frames. Errors: INPUT: it is unloaded; MEMORY. */
CML_API cml_status cml_reset(cml_net *net, cml_error *error);

/* Cancels and releases the network's jobs, fails the jobs that wait for their outputs, and frees
 * the network: at once, or when the open frame ends. Tensors and texts of it are gone. The handle
 * stays known until cml_destroy: its later use is CML_ERROR_INPUT. NULL is ignored, and so is a
 * network of another scheduler, which the log says. */
CML_API void cml_unload(cml_scheduler *scheduler, cml_net *net);

/* The shape of an input or output. Errors: INPUT: there is none of that index; it is unloaded. */
CML_API cml_status cml_get_input_shape(const cml_net *net, uint32_t index, cml_shape *shape);
CML_API cml_status cml_get_output_shape(const cml_net *net, uint32_t index, cml_shape *shape);

typedef struct cml_net_info {
    cml_text profile;
    uint32_t steps;
    uint64_t arena_bytes, weights_bytes, own_bytes;
    double flops, gas;
} cml_net_info;

/* Errors: INPUT: it is unloaded. */
CML_API cml_status cml_get_net_info(const cml_net *net, cml_net_info *info);

typedef struct cml_tensor { /* a range of a buffer, to bind or to copy from */
    void *buffer;           /* of the backend's type: a WGPUBuffer */
    uint64_t offset, bytes;
    cml_shape shape;
} cml_tensor;

/* One of: data of the host, a range of a buffer, another job's output of the same shape, type and
 * layout. */
typedef struct cml_input {
    const char *name;
    const void *data; /* plain, 4 bytes an element; copied by cml_submit */
    size_t bytes;
    void *buffer; /* a WGPUBuffer, in the network's layout; copied when the job starts */
    uint64_t offset;
    cml_job job; /* the job waits for this one's output */
    const char *output;
} cml_input;

#define CML_IDLE (-1.0) /* a priority: only what all others leave of a frame */

typedef struct cml_job_options {
    double priority;    /* its share against other jobs; 0: 1 */
    double deadline_ms; /* from now; 0: none */
    const char *slot;   /* a queued job of the same slot is cancelled in favour of this one */
} cml_job_options;

/* Submits a run of the network on these inputs, all of its own, each once. cml_encode runs it in
 * parts, as budgets allow. `options` may be NULL.
 * Errors: INPUT: an input is unknown, missing, given twice, of several sources or of a wrong size,
 * a job without that output, more than 16 outputs of jobs, a priority or deadline that is no
 * number, a slot of 48 bytes or more, `net` is unloaded or of another scheduler; FULL; MEMORY;
 * DEVICE: it is lost. *job is 0 then. */
CML_API cml_status cml_submit(cml_scheduler *scheduler, cml_net *net, const cml_input *inputs,
                              size_t count, const cml_job_options *options, cml_job *job,
                              cml_error *error);

typedef struct cml_job_info {
    cml_state state;
    int paused;
    double progress;   /* 0 to 1, by predicted time */
    double eta_ms;     /* to its end if nothing else is submitted */
    const char *error; /* why it failed or was cancelled, else "" */
} cml_job_info;

/* The job's state; CML_STATE_GONE for a handle that is released or was never given. */
CML_API cml_job_info cml_get_job_info(cml_scheduler *scheduler, cml_job job);
/* Both are ignored for jobs that have ended. A paused job keeps its progress. */
CML_API void cml_cancel(cml_scheduler *scheduler, cml_job job);
CML_API void cml_pause(cml_scheduler *scheduler, cml_job job, int paused);

/* Gives up the handle and the outputs, of which options.max_results per network are kept: jobs that
 * wait for one still get it. A job that has not ended is cancelled, and jobs that wait for its
 * outputs fail. */
CML_API void cml_release(cml_scheduler *scheduler, cml_job job);

/* An output on the device, valid until cml_release.
 * Returns CML_PENDING until the job is done. Errors: INPUT: the job is gone, cancelled or failed,
 * or has no such output, which is said at once. */
CML_API cml_status cml_get_tensor(cml_scheduler *scheduler, cml_job job, const char *output,
                                  cml_tensor *tensor);

/* Copies an output to the host, in the plain layout: 4 bytes an element.
 * Returns CML_PENDING until it has arrived, some frames after the job is done. Errors: INPUT: as
 * above, or `bytes` is not its size; DEVICE: it is lost. */
CML_API cml_status cml_read(cml_scheduler *scheduler, cml_job job, const char *output, void *data,
                            size_t bytes, cml_error *error);

#define CML_BUDGET (-1.0) /* a budget: that of cml_options */

/* Appends this frame's slices to the host's commands, a WGPUCommandEncoder with cml_webgpu.h; never
 * waits. Another budget than CML_BUDGET that is no number of 0 or more is taken as the one before.
 * The report is valid until the next call, and its reason says why nothing, or no more, was
 * encoded. Never NULL. */
CML_API const cml_report *cml_encode(cml_scheduler *scheduler, void *commands, double budget_ms);
/* The slices of that report. */
CML_API const cml_slice *cml_get_slices(const cml_scheduler *scheduler);

/* Ends a frame after the host's submit: learns from timings that have arrived, never waits. Returns
 * the number of frames that are now measured, 0 where no frame is open. */
CML_API uint32_t cml_end_frame(cml_scheduler *scheduler);
/* The report of one of those frames, until the next cml_end_frame; NULL beyond their number. */
CML_API const cml_report *cml_get_measured(const cml_scheduler *scheduler, uint32_t index);

/* Call it instead of the submit and cml_end_frame if the commands are thrown away: jobs go on from
 * where they were before the frame. Ignored where no frame is open. */
CML_API void cml_abandon_frame(cml_scheduler *scheduler);

/* Tells the scheduler that the device is lost: every job fails, nothing is encoded any more. Then
 * unload, destroy, and load again on a new device. */
CML_API void cml_device_lost(cml_scheduler *scheduler);

CML_API cml_counts cml_get_counts(const cml_scheduler *scheduler);

#ifdef __cplusplus
}
#endif
#endif
