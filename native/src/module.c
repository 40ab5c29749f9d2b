/* commitlog_speedups: compiled replacements for the hottest functions of commitlog. Each takes what its original takes
 * and returns the same; commitlog/speedups.py decides whether they are used. */

#include "append.h"
#include "batches.h"
#include "checksum.h"
#include "encode.h"
#include "keys.h"
#include "objects.h"
#include "records.h"
#include "send.h"
#include "strings.h"

#define INTERFACE 4 /* commitlog/speedups.py has the same number; it grows when what a function here takes, returns or
                     * knows of Python's objects changes */

static const Crc32cWay *ways;

static PyObject *sum(const Crc32cWay *way, PyObject *data, PyObject *before)
{
    unsigned long crc = before == NULL ? 0 : PyLong_AsUnsignedLongMask(before);
    Py_buffer view;
    if (PyErr_Occurred() || PyObject_GetBuffer(data, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    PyThreadState *thread = let_others_run(view.len);
    uint32_t found = ~way->extend(~(uint32_t)crc, view.buf, (size_t)view.len);
    go_on(thread);
    PyBuffer_Release(&view);
    return PyLong_FromUnsignedLong(found);
}

static const Crc32cWay *fastest;

static PyObject *module_crc32c(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count)
{
    if (count != 2 && !check_count("crc32c", count, 1))
        return NULL;
    return sum(fastest, args[0], count == 2 ? args[1] : NULL);
}

/* For tests: {name: crc32c of `data`} for every way that this processor knows. */
static PyObject *crc32c_ways(PyObject *Py_UNUSED(module), PyObject *data)
{
    PyObject *found = PyDict_New();
    for (const Crc32cWay *way = ways; found != NULL && way->name != NULL; way++) {
        PyObject *crc = sum(way, data, NULL);
        if (crc == NULL || PyDict_SetItemString(found, way->name, crc) < 0)
            Py_CLEAR(found);
        Py_XDECREF(crc);
    }
    return found;
}

static PyMethodDef methods[] = {
    {"crc32c", FAST(module_crc32c), METH_FASTCALL, "Return the crc32c of data; a second argument is continued."},
    {"crc32c_ways", crc32c_ways, METH_O, "Return the crc32c of data by each way that this processor knows."},
    {"crc32c_many", FAST(crc32c_many), METH_FASTCALL, "Return the crc32c of each of many parts of a buffer."},
    {"batch_starts", FAST(batch_starts), METH_FASTCALL, "Return where batches start that follow one another."},
    {"divide_by_key", FAST(divide_by_key), METH_FASTCALL, "Divide the columns of a batch by the hashes of its keys."},
    {"encode_plain", FAST(encode_plain), METH_FASTCALL, "Return the checksum and the bytes of a small batch."},
    {"join_parts", FAST(join_parts), METH_FASTCALL, "Return many parts of a buffer, one after another."},
    {"pack_strings", pack_strings, METH_O, "Return the lengths and the bytes of a list of byte strings."},
    {"read_ones", FAST(read_ones), METH_FASTCALL, "Return the records of batches of one record."},
    {"single_append", FAST(single_append), METH_FASTCALL, "Return a function that appends to a partition."},
    {"fast_send", FAST(fast_send), METH_FASTCALL, "Return a function that sends to a producer's open batches."},
    {"take_records", FAST(take_records), METH_FASTCALL, "Append the next records of an iterator to a list."},
    {"walk_ones", FAST(walk_ones), METH_FASTCALL, "Step over batches of one record."},
    {NULL, NULL, 0, NULL},
};

static int executed(PyObject *module)
{
    fastest = ways = crc32c_prepare();
    while (fastest[1].name != NULL)
        fastest++;
    if (!append_prepare(module) || !send_prepare(module))
        return -1;
    if (PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) < 0)
        return -1;
    return PyModule_AddStringConstant(module, "__version__", COMMITLOG_VERSION);
}

static PyModuleDef_Slot slots[] = {{Py_mod_exec, (void *)executed}, {0, NULL}};

static PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "commitlog_speedups",
    .m_doc = "Compiled replacements for the hottest functions of commitlog.",
    .m_methods = methods,
    .m_slots = slots,
};

PyMODINIT_FUNC PyInit_commitlog_speedups(void)
{
    return PyModuleDef_Init(&definition);
}
