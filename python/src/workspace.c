/* SPDX-License-Identifier: MIT
 * workspace.c - scratch memory for the ops that want some on CUDA (tegula/core.h): one block per device and
 * stream, made by the library whose tensors come, zeroed once, and kept. Calls on a stream run one after
 * the other, and each leaves the block all zero, so a call costs a look-up. All of this runs with the GIL
 * held. */
#include "glue.h"

typedef struct { PyObject *object, *capsule; void *data; size_t bytes; } block;
typedef struct {
    DLDevice device;
    tgl_stream stream;
    block memory;
    bool is_clean; /* zero for sure: initialised, and no launch on it has failed since */
} workspace;

enum { SMALLEST = 1 << 16 };
static workspace *kept;
static int num_kept;
_Thread_local bool is_preparing;

static void drop_block(block b)
{
    Py_XDECREF(b.object);
    Py_XDECREF(b.capsule);
}

static workspace *find(DLDevice device, tgl_stream stream)
{
    for (int i = 0; i < num_kept; i++)
        if (kept[i].stream == stream && kept[i].device.device_id == device.device_id) return &kept[i];
    return NULL;
}

/* Memory on the device of `like`, by its library. The bytes are there for as long as the references. */
static bool make(const tensor_ref *like, PyObject *like_object, size_t bytes, tgl_stream stream, block *out)
{
    static memo last; /* temporary ones ask for few sizes */
    int64_t shape = (int64_t)bytes, stride = 1;
    const DLTensor want = { .device = like->tensor.device, .dtype = { TGL_DL_UINT, 8, 1 }, .ndim = 1,
                            .shape = &shape, .strides = &stride };
    tensor_ref made;
    if (!make_output(like, like_object, &want, &last, stream, &made)) {
        drop_tensor(&made);
        if (!PyErr_ExceptionMatches(PyExc_TypeError)) return false;
        PyErr_Clear(); /* it speaks of out= */
        return PyErr_Format(PyExc_TypeError,
                            "no workspace can be made for a %R: give torch's tensors or CuPy's",
                            (PyObject *)Py_TYPE(like_object)),
               false;
    }
    *out = (block){ made.object, made.capsule, (char *)made.tensor.data + made.tensor.byte_offset, bytes };
    return true;
}

static bool init(const block *b, tgl_stream stream)
{
    const tgl_status status = tgl_workspace_init(b->data, b->bytes, stream);
    if (status != TGL_OK) raise_status(status);
    return status == TGL_OK;
}

/* The one of (device, stream), with at least so many bytes; NULL and an exception. A smaller block goes back
 * to its library, which hands it out again in the order of the stream. */
static workspace *find_or_make(const tensor_ref *like, PyObject *like_object, size_t bytes, tgl_stream stream)
{
    const DLDevice device = like->tensor.device;
    workspace *w = find(device, stream);
    if (w && w->memory.bytes >= bytes) return w;
    const size_t twice = w ? 2 * w->memory.bytes : SMALLEST;
    block made;
    if (!make(like, like_object, bytes > twice ? bytes : twice, stream, &made)) return NULL;
    w = find(device, stream); /* Python code ran meanwhile, perhaps another thread's call */
    if (!w) {
        workspace *more = PyMem_Realloc(kept, sizeof *kept * (size_t)(num_kept + 1));
        if (!more) return drop_block(made), PyErr_NoMemory(), NULL;
        kept = more;
        w = &kept[num_kept++];
        *w = (workspace){ .device = device, .stream = stream };
    }
    block smaller = made;
    if (w->memory.bytes < made.bytes) {
        smaller = w->memory;
        w->memory = made;
        w->is_clean = false;
    }
    drop_block(smaller);
    return find(device, stream); /* as above */
}

/* Sets f->workspace and f->workspace_bytes; `held` gets references for the call, during which another thread
 * may replace the kept one. A temporary one is zeroed now, or in a capture by the graph, at every replay, and
 * goes back to its allocator with the call. */
bool take_workspace(const tensor_ref *like, PyObject *like_object, size_t bytes, bool is_temporary, frame *f,
                    tensor_ref *held)
{
    block b;
    if (is_temporary) {
        if (!make(like, like_object, bytes, f->stream, &b)) return false;
        if (!init(&b, f->stream)) return drop_block(b), false;
    } else {
        workspace *w = find_or_make(like, like_object, bytes, f->stream);
        if (!w || (!w->is_clean && !init(&w->memory, f->stream))) return false;
        w->is_clean = !is_preparing; /* then nothing is launched, not even the initialisation */
        b = w->memory;
        Py_XINCREF(b.object);
        Py_XINCREF(b.capsule);
    }
    held->object = b.object;
    held->capsule = b.capsule;
    f->workspace = b.data;
    f->workspace_bytes = b.bytes;
    return true;
}

/* After a failed launch nobody knows what was written. */
void spoil_workspace(DLDevice device, tgl_stream stream)
{
    workspace *w = find(device, stream);
    if (w) w->is_clean = false;
}

PyObject *list_workspaces(void)
{
    PyObject *list = PyList_New(0);
    for (int i = 0; list && i < num_kept; i++) {
        const workspace *w = &kept[i];
        PyObject *t = Py_BuildValue("(iKnN)", (int)w->device.device_id,
                                    (unsigned long long)(uintptr_t)w->stream, (Py_ssize_t)w->memory.bytes,
                                    PyBool_FromLong(w->is_clean));
        if (!t || PyList_Append(list, t)) Py_CLEAR(list);
        Py_XDECREF(t);
    }
    return list;
}
