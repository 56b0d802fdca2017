/* SPDX-License-Identifier: MIT
 * case.h - the cases of an op. cases/<domain>/<op>.c says how to make the op's tensors, call it, compute
 * what must come out and count the bytes it moves. The C tests, `tegula check`, `tegula bench`, the emulated
 * device and the compile of all kernels read the same lists.
 *
 * A case is an op and a line of parameters, "num_rows=64 num_cols=7168 dtype=bf16". In a list of cases a
 * value may be a list, which stands for all combinations: "num_rows=64,128 dtype=e4m3,bf16" is four cases.
 *
 *     for (int64_t i = 0; i < case_count(op->lists[CASE_CHECK]); i++) {
 *         case_params params;
 *         case_report report;
 *         case_at(op, op->lists[CASE_CHECK], i, &params);
 *         case_check(op, &params, &backend, &report);      // inputs, guard bytes, two calls, comparison
 *     }
 *
 * To time calls, take the steps of case_check() one by one: case_open, case_poison, case_call, case_verify,
 * case_close. */
#ifndef TEGULA_CASE_H
#define TEGULA_CASE_H

#include <string.h>

#include "backend.h"
#include "core/dtype.h"
#include "tegula/core.h"

enum {
    CASE_MAX_PARAMS = 40,
    CASE_MAX_TENSORS = 24,
    CASE_MAX_DIMS = 8,
    CASE_WORD = 32, /* bytes of a parameter's name, and of its value */
    CASE_LABEL = 512,
    CASE_SCALARS = 256
};

/* ---- parameters ---- */

typedef struct {
    int count;
    struct { char name[CASE_WORD], value[CASE_WORD]; } item[CASE_MAX_PARAMS]; /* as the op's `params` */
} case_params;

/* ---- tensors ---- */

typedef enum { CASE_IN, CASE_OUT, CASE_INOUT } case_role;

/* How an output is compared. A NaN matches any NaN, except in CASE_BITS with nan_payload; an infinity matches
 * only itself. */
typedef enum {
    CASE_BITS,      /* the same bits */
    CASE_CLOSE,     /* |seen - want| <= atol + rtol * |want| */
    CASE_CALC_DIFF, /* 1 - 2 * sum(seen * want) / sum(seen^2 + want^2) < max, in double, over the whole
                     * tensor; a NaN never matches: it would hide the rest */
    CASE_BF16       /* within `ulp` steps or `atol`; and at most 1 + mismatch * count elements differ in
                     * bits (zeros of either sign are equal), so that a wrong rounding shows */
} case_mode;

typedef struct {
    case_mode mode;
    bool nan_payload;
    double atol, rtol, max, mismatch;
    int ulp;
} case_compare;

typedef struct case_problem case_problem;
typedef struct case_tensor case_tensor;

/* Writes the values of an input: all `slots` of its storage, gaps between rows included, so that any strides
 * work. The seed comes from the case and the tensor's name. */
typedef void (*case_fill)(const case_problem *c, case_tensor *t, uint64_t seed);

struct case_tensor {
    const char *name; /* as the header calls the argument; NULL: an optional one, not given */
    case_role role;
    tgl_dtype dtype;
    int ndim;
    int64_t shape[CASE_MAX_DIMS], strides[CASE_MAX_DIMS]; /* strides in elements */
    int64_t offset;                                       /* of the data from a 256-byte boundary, in elements */
    case_fill fill;                                       /* inputs; NULL: case_fill_bits */
    double low, high;                                     /* for fills that take a range */
    case_compare compare;                                 /* outputs */
    const bool *open_rows; /* shape[0] flags, or NULL: rows whose contents the op leaves open */
    bool is_scratch;       /* an output whose contents the op leaves open */
    bool on_host;          /* in memory that the host can read, wherever the others are */
    int64_t period;        /* of an input of many GiB: values repeat after as many slots, a multiple of 4096.
                            * It has no gaps, and is not compared after calls. 0: none (table.h) */
    bool has_huge_pages;   /* of such a table in host memory */

    /* Host memory, made by case_open(): an input's values; for an output what the oracle will say. `data` is
     * element [0, 0, ...]; with negative strides it is not the first slot of `storage`. */
    char *data, *storage;
    int64_t slots, element_bytes;
    char *initial; /* CASE_INOUT: `storage` before the call, which the oracle changes */
};

struct case_problem {
    case_params params;
    int num_tensors;
    case_tensor tensors[CASE_MAX_TENSORS];
    int64_t scalar;                                   /* from setup to run and oracle: one number, or */
    _Alignas(16) unsigned char scalars[CASE_SCALARS]; /* a params struct */
    char label[CASE_LABEL]; /* "transpose num_rows=64 ...": names a bench row, seeds the inputs */
    char error[128];        /* of a parameter that setup could not read */
    bool is_undecided;      /* set by the oracle if the last bits of exp or log1p decide */
};

/* What `run` gets: tensors on a device, by the numbers that setup gave them (NULL where not given). */
typedef struct {
    const case_problem *problem;
    DLTensor *arg[CASE_MAX_TENSORS];
    void *workspace;
    size_t workspace_bytes;
    tgl_stream stream;
} case_arguments;

/* ---- ops ---- */

typedef struct { int table, factors, indices; } case_gathered; /* factors: bytes of each row; -1: none */

typedef enum { CASE_CHECK, CASE_SLOW, CASE_BENCH, CASE_KERNELS, CASE_NUM_LISTS } case_list;

typedef struct {
    const char *name;                           /* "transpose": the op is tgl_<name> */
    const char *params;                         /* all, with defaults: "num_rows= offset=0". num_rows must be given. */
    tgl_status (*setup)(case_problem *c);       /* parameters -> tensors and scalars */
    tgl_status (*run)(const case_arguments *a); /* the public function */
    void (*oracle)(case_problem *c);            /* writes the outputs' data; shares no code with src/ */
    int64_t (*bytes)(const case_problem *c);    /* moved at least: each input and output once */
    size_t (*workspace)(const case_arguments *a); /* NULL: needs none */
    /* Lines, CASE_LINES("num_rows=1,2", "num_rows=64 dtype=bf16"): ended by NULL (a list may be NULL).
     *   check    correctness, everywhere, on the emulated device too: small
     *   slow     correctness, for make test-slow: more than 2^31 elements, the whole matrix of sizes
     *   bench    the rows that are timed and compared between versions
     *   kernels  in prepare mode these compile every variant of the op's kernels */
    const char *const *lists[CASE_NUM_LISTS];
    /* For an op that reads rows of a table by index, i32: which tensors these are. If the table is in host memory, a
     * bench times a plain gather of the same rows beside it. NULL: no such op. */
    bool (*gather)(const case_problem *c, case_gathered *which);
    bool has_no_kernel;     /* it only copies, from anywhere: its list of kernels is empty */
    bool uses_all_sms;      /* its blocks wait for each other, so the number of SMs decides which kernel runs */
    bool has_swiglu;        /* the last bits of exp decide how outputs are rounded */
    bool has_projection;    /* mHC's: CPUs and tensor cores add in another order, within a bound for tame values */
    bool has_narrow_oracle; /* its oracle is right for values of the lists, not for any */
    bool may_write_twice;   /* tensors with any values may name a row of the output twice; lists do not */
    /* Lines with sizes in braces: how models call the op (models.h). NULL: none does. */
    const char *const *models;
} case_op;

#define CASE_LINES(...) \
    (const char *const[]) { __VA_ARGS__, NULL }

/* All ops, from `const case_op <op>_cases` of cases/<domain>/<op>.c: the build makes the table, so that a
 * new op only needs a new file. NULL past the end. */
extern const case_op *const case_ops[];
const case_op *case_op_at(int i);
const case_op *case_find(const char *name); /* NULL: there is none */

/* ---- lists ---- */

/* A word of a line, "num_rows=64,128". case_next_pair() is false at the end of the line. */
typedef struct {
    const char *name, *values;
    int name_bytes, values_bytes;
} case_pair;
bool case_next_pair(const char **line, case_pair *pair);
bool case_pair_is(const case_pair *pair, const char *name);   /* is this its name? */
bool case_pair_has(const case_pair *pair, const char *value); /* is this one of its values? */

int64_t case_count(const char *const *lines);

/* Case i of a list, with the op's defaults filled in. TGL_ERR_ARGUMENT for an unknown or missing parameter
 * or a malformed line. What a user typed is a list too: CASE_LINES("num_rows=64,128 num_cols=7168
 * dtype=bf16"). */
tgl_status case_at(const case_op *op, const char *const *lines, int64_t i, case_params *params);

/* "num_rows=64 num_cols=7168 dtype=bf16": the parameters that differ from the defaults, in the op's order. */
void case_params_text(const case_op *op, const case_params *params, char *text, size_t bytes);

/* ---- for setup ---- */

/* A parameter's value. A name that the op's `params` lacks is a mistake in the table and aborts; a value
 * that is no number or no dtype gives 0 and makes case_open() fail with a message. */
const char *case_text(const case_problem *c, const char *name);
int64_t case_int(case_problem *c, const char *name);
tgl_dtype case_dtype(case_problem *c, const char *name);

/* strcmp() == 0: oracles ask for parameters inside loops, and ASan's strcmp() reads both strings three times. */
static inline bool case_same(const char *a, const char *b)
{
    while (*a && *a == *b) a++, b++;
    return *a == *b;
}

/* Is a parameter's value this word? case_word(c, "mask", "none all some"): which of these is it, from 0 on,
 * or -1? A fill asks once, before its loop. case_check_word() fails if it is none of them. */
static inline bool case_is(const case_problem *c, const char *name, const char *word)
{
    return case_same(case_text(c, name), word);
}
int case_word(const case_problem *c, const char *name, const char *words);
tgl_status case_check_word(const case_problem *c, const char *name, const char *words);

/* Adds tensor `index`: packed, offset 0, compared by bits with NaN payload. Change what differs. */
case_tensor *case_add(case_problem *c, int index, const char *name, case_role role, tgl_dtype dtype, int ndim,
                      const int64_t *shape);

/* Bytes of a tensor's elements, each counted once: a dimension of stride 0 repeats its elements. */
int64_t case_tensor_bytes(const case_tensor *t);

/* Bytes of all tensors: what an op moves that reads or writes each once. */
int64_t case_all_bytes(const case_problem *c);

/* Fills: any bits (NaN, infinities, subnormals too); mean 0, deviation 1; low <= v < high (whole numbers for
 * integers). Numbers are rounded to the tensor's dtype. */
void case_fill_bits(const case_problem *c, case_tensor *t, uint64_t seed);
void case_fill_normal(const case_problem *c, case_tensor *t, uint64_t seed);
void case_fill_uniform(const case_problem *c, case_tensor *t, uint64_t seed);

/* The i-th random number of a seed, and a seed from a name. */
uint64_t case_random(uint64_t seed, int64_t i);
int64_t case_random_below(uint64_t seed, int64_t i, int64_t n); /* 0 where n <= 0 */
uint64_t case_seed(const char *name);

/* ---- for oracles ---- */

/* Zeroed memory for count + 1 elements, to be freed; aborts if there is none. */
void *case_memory(int64_t count, size_t size);

/* The address of an element on the host. */
static inline void *case_element(const case_tensor *t, const int64_t *index)
{
    int64_t offset = 0;
    for (int d = 0; d < t->ndim; d++) offset += index[d] * t->strides[d];
    return t->data + offset * t->element_bytes;
}

/* Calls f for every run of elements in consecutive slots of the storage; `element` counts in row-major order.
 * Open rows, and all of a scratch tensor, are skipped. */
void case_runs(const case_tensor *t, void (*f)(void *context, int64_t element, int64_t slot, int64_t run),
               void *context);

/* An element of a real dtype as a double (exact but for 64-bit integers), and a double rounded to a dtype:
 * floats to nearest even, e4m3 and e5m2 saturating; integers towards zero, saturating. Written from the
 * formats' definitions, not from src/numerics. Abort for dtypes that are no single real number. */
double case_decode(tgl_dtype dtype, const void *element);
void case_encode(tgl_dtype dtype, double value, void *element);

/* Calls f for chunks of 0 .. n - 1, on all cores if n * item_bytes is worth it: for fills and oracles. */
void case_parallel(int64_t n, int64_t item_bytes, void (*f)(void *context, int64_t begin, int64_t end), void *context);

/* ---- one case on one device ---- */

typedef enum { CASE_PASSED, CASE_FAILED, CASE_SKIPPED, CASE_UNDECIDED } case_result;

typedef struct {
    case_result result;
    tgl_status status; /* of a call that failed */
    char text[1024];   /* a failure: "out[3, 5]: is 0x3f80 (1), want 0x0000 (0); 2 of 96 elements differ" */
} case_report;

/* A problem laid out on a device, with guard bytes around every tensor. */
typedef struct {
    const case_op *op;
    const backend *on;
    case_problem problem;
    case_arguments arguments;
    DLTensor tensors[CASE_MAX_TENSORS];
    char *memory[CASE_MAX_TENSORS]; /* the allocations, guards included; on the device */
    size_t memory_bytes[CASE_MAX_TENSORS];
    char *workspace_memory;
    bool has_answers; /* the outputs' data is what is wanted */
} case_instance;

/* Parameters made into tensors, without memory: the first step of case_open(). */
tgl_status case_make_problem(const case_op *op, const case_params *params, case_problem *c);

/* Makes the inputs and copies them to the device. TGL_ERR_MEMORY if host or device has too little: most
 * callers skip such a case. After a failure there is nothing to close. */
tgl_status case_open(const case_op *op, const case_params *params, const backend *on, case_instance **out);
/* The same from a problem whose tensors are laid out already; `load` writes the values of the inputs and the
 * wanted outputs, such as recorded ones. Only `run` and `workspace` of the op are used. */
tgl_status case_open_problem(const case_op *op, const case_problem *problem,
                             tgl_status (*load)(case_problem *c, void *context), void *context, const backend *on,
                             case_instance **out);
void case_close(case_instance *k);

/* How often case_check() calls the op: twice, or while scrubbing (scrub.h) once per pattern. */
int case_num_rounds(void);

/* Fills outputs, gaps and guards with the poison of this round; writes initial values. */
tgl_status case_poison(case_instance *k, int round);

/* One call of the op: enqueued on k->arguments.stream (the backend's, unless changed), not waited for. */
static inline tgl_status case_call(case_instance *k) { return k->op->run(&k->arguments); }

/* Waits, copies back and compares every output; all bytes between and around its elements, inputs and
 * workspace must be unchanged. The oracle runs the first time, after the call, since only the op itself
 * judges its arguments. `round` is that of the poison. `hash` (may be NULL) gets a hash of the outputs'
 * bits. The status is that of waiting and copying. */
tgl_status case_verify(case_instance *k, int round, case_report *report, uint64_t *hash);

/* All of it: calls with different poison, which must also agree with each other. CASE_UNDECIDED, if the
 * oracle has no answer, is a mistake in a list. */
case_result case_check(const case_op *op, const case_params *params, const backend *on, case_report *report);

/* The call alone, in prepare mode, on tensors without data. On a CUDA device it compiles the kernels of the
 * case. */
tgl_status case_call_without_data(const case_op *op, const case_params *params, DLDevice device);
static inline tgl_status case_prepare(const case_op *op, const case_params *params, int device)
{
    return case_call_without_data(op, params, (DLDevice){ (DLDeviceType)TGL_DL_CUDA, device });
}

/* Facts of a case without making it: its label, the bytes it moves, the bytes that case_open() takes. */
typedef struct {
    char label[CASE_LABEL];
    int64_t bytes, host_bytes, device_bytes;
} case_facts;
tgl_status case_describe(const case_op *op, const case_params *params, const backend *on, case_facts *facts);

/* Compares one output; `seen` is laid out as t->storage. False, with the first difference in the report. */
bool case_compare_tensor(const case_tensor *t, const void *seen, case_report *report);

#endif
