/* normquant: fused RMSNorm (+ residual add) and FP4 quantization, specialized at run time.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * The whole C API. C99, needs no CUDA header.
 *
 *   nq_context *ctx;          configuration, kernel cache, loaded kernels
 *   nq_kernel  *kernel;       one problem on one device, ready to launch
 *
 *   nq_context_create(NULL, &ctx);
 *   nq_prepare(ctx, &problem, NULL, &kernel);     compiles or reads the cache; do it before serving
 *   nq_launch(kernel, &tensors, stream);          one kernel launch: no lock, no allocation, capturable
 *
 * What a row becomes (x[H], w[H]; every step rounds to binary32, nothing is approximate):
 *
 *   v     = x                                       (or round16(x + residual) for NQ_OP_ADD_RMSNORM)
 *   rstd  = 1 / sqrt(sum(v*v) / H + eps)
 *   p     = v * w                                   (v * (1 + w) with NQ_PROBLEM_WEIGHT_BIAS_ONE)
 *   scale = E4M3(max|p| * rstd * global_scale / 6)  over each block of 16 or 32 elements, or
 *   scale = UE8M0: the power of two at or above max|p| * rstd / 6
 *   code  = E2M1(p * rstd * global_scale / scale)
 *
 * so a consumer restores  y = code * scale / global_scale.  The global scale is the *encode* scale, usually
 * 448 * 6 / max|y|: it multiplies before the block scale is rounded. Absent means 1.
 * The bytes of a row depend on that row alone: not on the batch, the GPU or the launch plan.
 *
 * FP4 codes: byte i of a row holds element 2i in its low nibble and 2i+1 in its high nibble.
 * Scales, with nb = H / block_size scales a row:
 *   NQ_LAYOUT_LINEAR    scale of (row r, block b) at byte r*nb + b
 *   NQ_LAYOUT_SWIZZLED  128x4 tiles of 512 bytes; with KT = ceil(nb/4), at byte
 *                       ((r/128)*KT + b/4)*512 + (r%32)*16 + ((r%128)/32)*4 + b%4
 *                       The buffer has ceil(M/128)*KT*512 bytes (nq_scale_bytes); padding is written as 0.
 *   NQ_LAYOUT_BOTH      both, in two buffers
 *
 * Errors: functions return nq_status, which is what a program switches on. nq_last_error() is the text for people.
 * Structs start with struct_size; initialize them with their NQ_..._INIT macro. They only ever grow at the end.
 */
#ifndef NORMQUANT_NORMQUANT_H
#define NORMQUANT_NORMQUANT_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define NQ_API __attribute__((visibility("default")))
#else
#define NQ_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

#define NQ_VERSION_MAJOR 0
#define NQ_VERSION_MINOR 1
#define NQ_VERSION_PATCH 0
/* MAJOR*10000 + MINOR*100 + PATCH */
#define NQ_VERSION (NQ_VERSION_MAJOR * 10000 + NQ_VERSION_MINOR * 100 + NQ_VERSION_PATCH)

/* The CUDA driver's stream tag; a CUstream or cudaStream_t converts without a cast. NULL is the legacy default stream. */
struct CUstream_st;

typedef enum nq_status {
    NQ_OK = 0,
    NQ_ERR_INVALID_ARGUMENT = 10,    /* a value no problem or device could accept */
    NQ_ERR_MISALIGNED = 11,          /* a pointer or stride is not a multiple of nq_required_alignment() */
    NQ_ERR_STRUCT_SIZE = 12,         /* struct_size too small, or unknown non-zero fields behind the known ones */
    NQ_ERR_UNSUPPORTED_PROBLEM = 20, /* valid, but there is no kernel for it */
    NQ_ERR_UNSUPPORTED_DEVICE = 21,  /* the GPU, or the NVRTC at hand, cannot run it */
    NQ_ERR_NVRTC_MISSING = 30,       /* a compile is needed and libnvrtc was not found */
    NQ_ERR_COMPILE_FAILED = 31,      /* nq_last_error_detail() holds the NVRTC log */
    NQ_ERR_NOT_PREPARED = 32,        /* a compile is needed where none is allowed: stream capture, or JIT off */
    NQ_ERR_DRIVER_MISSING = 40,      /* libcuda was not found */
    NQ_ERR_DRIVER_TOO_OLD = 41,      /* the driver lacks a function or cannot load the cubin */
    NQ_ERR_NO_CONTEXT = 42,          /* no CUDA context is current and the stream names none */
    NQ_ERR_DRIVER = 43,              /* any other driver error; the text names it */
    NQ_ERR_CACHE_UNTRUSTED = 50,     /* the cache directory could be written by others */
    NQ_ERR_CACHE_IO = 51,            /* nq_precompile: compiled, but the cache could not be written */
    NQ_ERR_OUT_OF_MEMORY = 60,       /* host or device memory */
    NQ_ERR_FORKED = 70,              /* used in a child of the process that initialized CUDA */
    NQ_ERR_INTERNAL = 90             /* a bug in normquant */
} nq_status;

enum nq_op {
    NQ_OP_RMSNORM = 0,    /* normalize x */
    NQ_OP_ADD_RMSNORM = 1 /* residual := round16(x + residual), then normalize the residual */
};

enum nq_dtype {
    NQ_FP16 = 0, /* IEEE binary16 */
    NQ_BF16 = 1, /* bfloat16 */
    NQ_FP32 = 2  /* weights only */
};

enum nq_scale_format {
    NQ_SCALE_E4M3 = 0, /* NVFP4 with block_size 16 */
    NQ_SCALE_UE8M0 = 1 /* MXFP4 with block_size 32; takes no global scale */
};

enum nq_scale_layout {
    NQ_LAYOUT_LINEAR = 0,
    NQ_LAYOUT_SWIZZLED = 1,
    NQ_LAYOUT_BOTH = 2 /* the same scales twice: swizzled to nq_tensors.scales, linear to nq_tensors.scales_linear */
};

/* nq_problem.flags */
#define NQ_PROBLEM_WEIGHT_BIAS_ONE 0x1u /* the weight is stored as w - 1 (Gemma) */
#define NQ_PROBLEM_Y_OUT 0x2u           /* also write the normed row in x's type */
#define NQ_PROBLEM_OVERLAP 0x4u         /* programmatic dependent launch: the kernel may begin while the one before it in the stream ends,
                                           and waits for that one's memory before it touches anything. Of no effect below sm_90 */
#define NQ_PROBLEM_DEVICE_ROWS 0x8u     /* the row count may be read on the device: nq_tensors.device_rows */
#define NQ_PROBLEM_BATCHES 0x10u        /* x may lie in batches with a stride of their own: nq_tensors.batch_rows */

/* What is computed. A kernel is specialized for it; every field is part of its cache key. */
typedef struct nq_problem {
    uint32_t struct_size;
    uint32_t op;           /* enum nq_op */
    uint32_t hidden;       /* H, elements a row: block_size to 131072, a multiple of block_size */
    uint32_t dtype;        /* of x, residual and y_out: NQ_FP16 or NQ_BF16 */
    uint32_t weight_dtype; /* dtype, or NQ_FP32 */
    uint32_t block_size;   /* elements a scale: 16 or 32 */
    uint32_t scale_format; /* enum nq_scale_format; any format goes with any block size */
    uint32_t scale_layout; /* enum nq_scale_layout */
    uint32_t flags;        /* NQ_PROBLEM_... */
} nq_problem;

/* NVFP4 of bf16 rows, linear scales; set .hidden. */
#define NQ_PROBLEM_INIT \
    { (uint32_t)sizeof(nq_problem), NQ_OP_RMSNORM, 0, NQ_BF16, NQ_BF16, 16, NQ_SCALE_E4M3, NQ_LAYOUT_LINEAR, 0 }

/* nq_tensors.flags */
#define NQ_TENSORS_KEEP_PADDING 0x1u    /* leave the padding bytes of a swizzled scale buffer as they are */
#define NQ_TENSORS_CONSTANT_WEIGHT 0x2u /* with NQ_PROBLEM_OVERLAP: no kernel before this one in the stream that may still run writes
                                           the weight, so that it may be fetched while waiting */

/* The data of one call. Device pointers for nq_launch and nq_run, host pointers for nq_reference.
 *
 * Inputs are never modified, the residual excepted where it is updated in place. An output overlaps neither an input nor another
 * output; rows with a stride may interleave with those of another tensor. What certainly overlaps is refused. Two exceptions: the
 * residual may be residual_out (that, or residual_out NULL, updates it in place), and one input may be another.
 *
 * With rows == 0 every pointer may be NULL. */
typedef struct nq_tensors {
    uint32_t struct_size;
    uint32_t flags;            /* NQ_TENSORS_... */
    int64_t rows;              /* M, 0 to 2^31-1; with device_rows the most that it may say */
    float eps;                 /* finite, >= 0; added to the mean square */
    uint32_t reserved;         /* 0 */
    const void *x;             /* [rows][hidden], row stride x_stride; 16-byte aligned */
    int64_t x_stride;          /* elements between rows, 0 for hidden; a multiple of 8, at least hidden. A column slice of a wider
                                  matrix has its row length here */
    const void *weight;        /* [hidden]; 16-byte aligned */
    const float *global_scale; /* one fp32 read when the kernel runs, or NULL for 1; NULL with UE8M0 */
    void *fp4;                 /* [rows][hidden/2] bytes, row stride fp4_stride; 8-byte aligned */
    int64_t fp4_stride;        /* bytes between rows, 0 for hidden/2; a multiple of 8, at least hidden/2 */
    void *scales;              /* nq_scale_bytes() bytes; 16-byte aligned when swizzled */
    void *residual;            /* ADD_RMSNORM: [rows][hidden] in x's type, updated in place or an input; 16-byte aligned */
    int64_t residual_stride;   /* as x_stride */
    void *y_out;               /* Y_OUT: [rows][hidden] in x's type; 16-byte aligned */
    int64_t y_out_stride;      /* as x_stride */
    float *sum_of_squares;     /* nq_reference only: [rows], or NULL */
    float *rstd;               /* nq_reference only: [rows], or NULL */
    void *residual_out;        /* ADD_RMSNORM: where the sum goes instead, or NULL to update the residual; as residual */
    int64_t residual_out_stride; /* as x_stride */
    void *scales_linear;       /* LAYOUT_BOTH: [rows][hidden/block_size] bytes */
    int64_t scales_stride;     /* bytes between rows of linear scales (of scales_linear with LAYOUT_BOTH), 0 for hidden/block_size */
    int64_t batch_rows;        /* BATCHES: x as [batches][batch_rows][hidden]: rows a batch, 0 for one batch of all rows */
    int64_t x_batch_stride;    /* elements between batches, 0 for batch_rows * x_stride; a multiple of 8 */
    const int32_t *device_rows; /* DEVICE_ROWS: M, read when the kernel runs, or NULL for rows; below 0 it is 0, above rows it is rows. FP4,
                                  residual, y_out and linear scales from that row on are left alone, swizzled scales there are padding */
} nq_tensors;

#define NQ_TENSORS_INIT \
    { (uint32_t)sizeof(nq_tensors), 0, 0, 1e-6f, 0, NULL, 0, NULL, NULL, NULL, 0, NULL, NULL, 0, NULL, 0, NULL, NULL, NULL, 0, NULL, 0, 0, 0, NULL }

/* Severity passed to a log callback. */
enum nq_log_level {
    NQ_LOG_DEFAULT = 0, /* in nq_context_options: NORMQUANT_LOG, else NQ_LOG_WARN; never passed to a callback */
    NQ_LOG_DEBUG = 1,
    NQ_LOG_INFO = 2,
    NQ_LOG_WARN = 3,
    NQ_LOG_ERROR = 4,
    NQ_LOG_OFF = 5
};

/* Called from any thread that uses the context; must not call back into normquant. */
typedef void (*nq_log_callback)(uint32_t level, const char *message, void *payload);

enum nq_jit {
    NQ_JIT_DEFAULT = 0, /* NORMQUANT_JIT, else on */
    NQ_JIT_ON = 1,
    NQ_JIT_OFF = 2 /* only cached kernels; a miss is NQ_ERR_NOT_PREPARED */
};

/* One NVRTC compile of a context has ended, well or not. Called on the thread that compiled, for every compile: an engine
 * can raise an alarm when one comes after its warm-up. Must not call back into the same context. */
typedef struct nq_compile_event {
    uint32_t struct_size;
    nq_status status;     /* NQ_OK, or what the caller of nq_prepare gets */
    const char *key;      /* 32 hex digits, as `normquant cache` names the entry */
    const char *problem;  /* canonical text of the problem */
    const char *variant;  /* canonical text of the plan */
    const char *arch;     /* "sm_90", "sm_100f" */
    uint64_t compile_ns;
} nq_compile_event;

typedef void (*nq_compile_callback)(const nq_compile_event *event, void *payload);

/* nq_context_options.cache_flags */
#define NQ_CACHE_READONLY 0x1u /* the root is read like a layer and never written; also NORMQUANT_CACHE_READONLY=on */
#define NQ_CACHE_SHARED 0x2u   /* trust directories and bundles that others can write; also NORMQUANT_CACHE_SHARED=on */

/* Every NULL or 0 field falls back to the environment variable named, then to the default. */
typedef struct nq_context_options {
    uint32_t struct_size;
    uint32_t jit;                 /* enum nq_jit; NORMQUANT_JIT=on|off */
    const char *cache_dir;        /* root of the disk cache, "" for none; NORMQUANT_CACHE_DIR, else
                                     $XDG_CACHE_HOME/normquant, else $HOME/.cache/normquant */
    const char *nvrtc;            /* path of libnvrtc; NORMQUANT_NVRTC, else one loaded already, the loader's, CUDA_HOME's,
                                     that of the active Python environment */
    const char *libcuda;          /* path of libcuda; NORMQUANT_LIBCUDA, else the loader's libcuda.so.1 */
    nq_log_callback log_callback; /* NULL: warnings and errors go to stderr */
    void *log_payload;
    uint32_t log_level;           /* enum nq_log_level, the least severity reported */
    uint32_t cache_flags;         /* NQ_CACHE_... */
    const char *bundles;          /* bundles and read-only cache directories, separated by ':', searched before the root;
                                     NORMQUANT_BUNDLES. Their kernels serve whichever NVRTC made them */
    uint64_t cache_size;          /* limit of the root in bytes, UINT64_MAX for none; NORMQUANT_CACHE_SIZE, else 1 GiB */
    uint32_t compile_threads;     /* compiles at a time; 0: min(4, cores) */
    uint32_t lock_timeout_ms;     /* wait at most so long for another process that compiles the same kernel; 0: 30000 */
    nq_compile_callback compile_callback; /* may be NULL */
    void *compile_payload;
} nq_context_options;

#define NQ_CONTEXT_OPTIONS_INIT { (uint32_t)sizeof(nq_context_options), NQ_JIT_DEFAULT, NULL, NULL, NULL, NULL, NULL, 0, 0, NULL, 0, 0, 0, NULL, NULL }

typedef struct nq_prepare_options {
    uint32_t struct_size;
    uint32_t threads_per_row;      /* 0: normquant chooses. For tests and tuning: any count nq_plan_query accepts */
    struct CUstream_st *stream;    /* its context's device is prepared for; NULL: the current context's */
    /* For tests and tuning, too; 0 for what normquant chooses. */
    uint32_t variant;              /* with threads_per_row: the enum nq_variant of the one plan */
    uint32_t cluster_size;         /* with threads_per_row: 2, 4, 8 or 16 blocks share a row and its sum (sm_90 and later; variant 0 or 1); 0 or 1: no cluster */
    uint32_t max_shared_bytes;     /* shared memory that a block may have, as on a smaller device; 0: the target's */
    uint32_t max_cluster_size;     /* likewise of blocks a cluster */
} nq_prepare_options;

#define NQ_PREPARE_OPTIONS_INIT { (uint32_t)sizeof(nq_prepare_options), 0, NULL, 0, 0, 0, 0 }

/* How a problem runs. Filled by nq_plan_query. */
typedef struct nq_plan {
    uint32_t struct_size;
    uint32_t tree_threads;        /* T0: width of the fixed summation tree, a function of hidden alone */
    uint32_t threads_per_row;     /* N */
    uint32_t rows_per_block;      /* rows that a block takes at a time */
    uint32_t block_threads;       /* threads a block; a launch of few rows may have fewer where a block takes many rows */
    uint32_t granules_per_thread; /* 16-element granules a thread handles, rounded up */
    uint32_t row_in_registers;    /* 1: a block's threads hold a row; 0: it is too wide and x is read twice */
    uint32_t load_bytes;          /* 16, or 32 in the variants for 32-byte aligned inputs */
    uint32_t blocks_per_row;      /* 1, or the blocks that share a row */
    uint32_t row_buffers;         /* rows a group of threads has in shared memory where blocks stay on their multiprocessor; else 0 */
} nq_plan;

#define NQ_PLAN_INIT { (uint32_t)sizeof(nq_plan), 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* The closed list of variants that nq_prepare loads and nq_launch chooses from. */
enum nq_variant {
    NQ_VARIANT_THROUGHPUT = 0,
    NQ_VARIANT_LATENCY = 1,
    NQ_VARIANT_THROUGHPUT_32B = 2, /* sm_100 and newer, inputs aligned to 32 bytes */
    NQ_VARIANT_LATENCY_32B = 3,
    NQ_VARIANT_SPLIT = 4           /* few rows: several blocks share a row; where a residual is added, as a cluster (sm_90 and later) */
};

/* What a context has done so far. Kernels are counted by variant: nq_prepare needs one to four of them. */
typedef struct nq_counters {
    uint32_t struct_size;
    uint32_t reserved;
    uint64_t memory_hits;     /* nq_prepare answered from the context */
    uint64_t layer_hits;      /* kernels from bundles and read-only directories */
    uint64_t disk_hits;       /* kernels from the root */
    uint64_t misses;          /* kernels found nowhere: a compile, or NQ_ERR_NOT_PREPARED */
    uint64_t compiles;        /* NVRTC compiles that succeeded */
    uint64_t failed_compiles; /* and that did not */
    uint64_t compile_ns;      /* time spent in both, summed over threads */
    uint64_t lock_waits;      /* misses that waited for another process's compile */
    uint64_t lock_wait_ns;
    uint64_t lock_timeouts;   /* waits that were given up */
    uint64_t bad_entries;     /* entries that failed verification */
    uint64_t stored_entries;  /* written to the root */
    uint64_t stored_bytes;
    uint64_t failed_stores;   /* compiled, but not written */
    uint64_t loaded_bytes;    /* of entries read */
    uint64_t evicted_entries; /* removed to keep within the size limit */
    uint64_t evicted_bytes;
} nq_counters;

#define NQ_COUNTERS_INIT { (uint32_t)sizeof(nq_counters), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0 }

/* One kernel of an nq_precompile call is done. Calls are serialized. Return non-zero to stop after this one: the call
 * then returns NQ_OK, or the first failure so far. */
typedef struct nq_precompile_event {
    uint32_t struct_size;
    uint32_t variant;      /* enum nq_variant */
    uint64_t done;         /* kernels finished, this one included */
    uint64_t total;
    size_t problem_index;
    const char *arch;      /* "sm_90", "sm_100f" */
    nq_status status;
    uint32_t cached;       /* 1: it was in the cache already */
    uint64_t compile_ns;   /* 0 when cached */
    const char *message;   /* "" or the error */
} nq_precompile_event;

typedef int (*nq_precompile_callback)(const nq_precompile_event *event, void *payload);

typedef struct nq_context nq_context; /* internally synchronized */
typedef struct nq_kernel nq_kernel;   /* immutable; owned by its context */

/* ---- Queries. Pure: no context, no GPU. ------------------------------------------------------- */

/* NQ_VERSION of the loaded library. */
NQ_API uint32_t nq_version(void);
/* 32 hex digits over every embedded kernel source; changes when generated code may change. */
NQ_API const char *nq_kernel_sources_digest(void);
/* "NQ_ERR_MISALIGNED" for 11; "unknown status" for a value that is none. */
NQ_API const char *nq_status_name(nq_status status);
/* Text of the calling thread's last call if that failed, else "". Valid until that thread's next call. */
NQ_API const char *nq_last_error(void);
/* More about it: the NVRTC log of a failed compile; else "". */
NQ_API const char *nq_last_error_detail(void);

/* NQ_OK if the fields are valid and consistent; else which one is not, and what is accepted. */
NQ_API nq_status nq_problem_check(const nq_problem *problem);
/* Bytes of `rows` contiguous rows of FP4 codes. */
NQ_API nq_status nq_fp4_bytes(const nq_problem *problem, int64_t rows, size_t *bytes);
/* Bytes of nq_tensors.scales, padding included. */
NQ_API nq_status nq_scale_bytes(const nq_problem *problem, int64_t rows, size_t *bytes);
/* Byte of the scale of (row, block) in that buffer. */
NQ_API nq_status nq_scale_offset(const nq_problem *problem, int64_t row, uint32_t block, size_t *offset);
/* Least alignment in bytes of the base and row stride of a tensor, named as its field in nq_tensors ("x", "fp4", ...). */
NQ_API nq_status nq_required_alignment(const nq_problem *problem, const char *tensor, size_t *alignment);
/* NQ_OK if there is a kernel for the problem on the target ("sm_90", "sm_100f", "sm_120a", ...). */
NQ_API nq_status nq_supported(const nq_problem *problem, const char *arch);
/* The plan of one variant on a target. With threads_per_row != 0: of that plan override; `variant` then selects the load width.
 * NQ_ERR_UNSUPPORTED_PROBLEM when the variant does not exist there. */
NQ_API nq_status nq_plan_query(const nq_problem *problem, const char *arch, uint32_t variant, uint32_t threads_per_row,
                               nq_plan *plan);

/* ---- The CPU reference -------------------------------------------------------------------------------------------- */

/* Computes the same bytes on the CPU, from host pointers. Covers every problem that nq_problem_check accepts.
 * Pointers and strides need no alignment here. threads: 0 for one a core. Blocks until done. */
NQ_API nq_status nq_reference(const nq_problem *problem, const nq_tensors *tensors, uint32_t threads);

/* ---- Context and kernels ------------------------------------------------------------------------------------------- */

/* Reads the environment once. Touches neither driver nor NVRTC. options may be NULL. */
NQ_API nq_status nq_context_create(const nq_context_options *options, nq_context **context);
/* Unloads its kernels: the caller makes sure that none of their launches is still in flight, and launches no graph that holds one
 * afterwards. (A driver of CUDA 13.0 was seen to wait for launches in flight; CUDA's documentation does not promise it.) NULL is a
 * no-op, and so is a context of the parent in a forked child. A program may also end without it, on any thread. */
NQ_API void nq_context_destroy(nq_context *context);
NQ_API nq_status nq_context_counters(const nq_context *context, nq_counters *counters);
/* From now on as if JIT were off: kernels in memory and on disk serve, a compile is NQ_ERR_NOT_PREPARED. For engines that
 * have warmed up and would rather fail than stall. For good; compiles that have begun end well. */
NQ_API nq_status nq_context_seal(nq_context *context);
/* The root of the disk cache in use, "" when there is none. Valid for the context's life. */
NQ_API const char *nq_context_cache_dir(const nq_context *context);

/* Makes a problem ready on a device: memory, else disk cache, else NVRTC. All variants are loaded. options may be NULL.
 * The kernel lives as long as the context; preparing the same problem again returns the same kernel. A CUDA context that takes the
 * place of one that was destroyed or reset, even with an equal handle, gets kernels of its own. A variant for which the device has no
 * room is left out, and the others serve. */
NQ_API nq_status nq_prepare(nq_context *context, const nq_problem *problem, const nq_prepare_options *options,
                            nq_kernel **kernel);
/* Compiles every variant of each problem for each arch into the cache. No GPU, no driver. callback may be NULL.
 * Returns the first failure after trying everything; a kernel that could not be stored is one (NQ_ERR_CACHE_IO).
 * threads: 0 for the context's compile_threads, which bounds the compiles in any case. */
NQ_API nq_status nq_precompile(nq_context *context, const nq_problem *problems, size_t problem_count,
                               const char *const *archs, size_t arch_count, uint32_t threads,
                               nq_precompile_callback callback, void *payload);

/* Enqueues the kernel. Thread-safe, legal in stream capture; does not synchronize, allocate, lock or log.
 * The stream, or with NULL the current context, must be of the context that the kernel was prepared in. Elsewhere the driver loads the
 * kernel at its first launch, or refuses it: another device may lack the capability, or the shared memory that was asked for.
 * An error of earlier work in the context may be reported here; the text then says so. */
NQ_API nq_status nq_launch(const nq_kernel *kernel, const nq_tensors *tensors, struct CUstream_st *stream);
/* nq_prepare and nq_launch in one. In a capture, an unprepared problem is NQ_ERR_NOT_PREPARED and the capture goes on. */
NQ_API nq_status nq_run(nq_context *context, const nq_problem *problem, const nq_tensors *tensors,
                        struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif

#endif /* NORMQUANT_NORMQUANT_H */
