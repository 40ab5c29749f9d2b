/* Writing a column of byte strings: their lengths, at the smallest width, a bitmap of those that are null, and all their
 * bytes in one string. */

#include "strings.h"

#include "batches.h"

static PyObject *item_at(const Strings *strings, Py_ssize_t number)
{
    return strings->is_list ? PyList_GetItem(strings->items, number) : PyTuple_GetItem(strings->items, number);
}

int measure_strings(PyObject *items, Py_ssize_t most_records, Py_ssize_t most_bytes, Strings *found)
{
    int is_list = PyList_CheckExact(items);
    if (!is_list && !PyTuple_CheckExact(items))
        return 0;
    Py_ssize_t count = is_list ? PyList_Size(items) : PyTuple_Size(items);
    if (count > most_records)
        return 0;
    Py_ssize_t least = PY_SSIZE_T_MAX, most = 0, total = 0, missing = 0;
    *found = (Strings){.items = items, .is_list = is_list, .count = count};
    for (Py_ssize_t number = 0; number < count; number++) {
        PyObject *item = item_at(found, number);
        Py_ssize_t length = 0;
        if (PyBytes_CheckExact(item))
            length = Py_SIZE(item); /* measured: PyBytes_Size() takes 2 ns, of 8 for each string */
        else if (item == Py_None)
            missing++;
        else
            return 0;
        least = length < least ? length : least;
        most = length > most ? length : most;
        if (length > most_bytes - total)
            return 0;
        total += length;
    }
    int form = least >= most ? CONSTANT : most <= UINT8_MAX ? U8 : most <= UINT16_MAX ? U16 : U32;
    found->form = form;
    found->nulls = missing == 0 ? NO_NULLS : missing == count ? ALL_NULL : BITMAP;
    found->longest = most;
    found->constant = form == CONSTANT ? most : 0;
    found->length_bytes = count * (form == U32 ? 4 : form);
    found->bitmap_bytes = found->nulls == BITMAP ? (count + 7) / 8 : 0;
    found->blob_bytes = total;
    return 1;
}

void write_strings(const Strings *strings, char *lengths, char *bitmap, char *blob)
{
    int form = strings->form, nulls = strings->nulls;
    memset(bitmap, 0, (size_t)strings->bitmap_bytes);
    for (Py_ssize_t number = 0; number < strings->count && nulls != ALL_NULL; number++) {
        PyObject *item = item_at(strings, number);
        uint32_t length = item == Py_None ? 0 : (uint32_t)Py_SIZE(item);
        if (form == U8)
            lengths[number] = (char)length;
        else if (form == U16)
            memcpy(lengths + 2 * number, &length, 2);
        else if (form == U32)
            memcpy(lengths + 4 * number, &length, 4);
        if (item == Py_None)
            continue;
        if (nulls == BITMAP)
            bitmap[number / 8] |= (char)(1 << number % 8);
        memcpy(blob, PyBytes_AsString(item), length);
        blob += length;
    }
}

/* pack_strings(items): the form, the constant and the bytes of their lengths, where nulls are, their bitmap, and all bytes
 * together; None if they are no list or tuple, or not all `bytes` or None, or more than a batch holds. No Python code runs
 * here, so nothing changes them meanwhile. */
PyObject *pack_strings(PyObject *Py_UNUSED(module), PyObject *items)
{
    Strings strings;
    if (!measure_strings(items, PY_SSIZE_T_MAX, INT32_MAX, &strings) || strings.count == 0)
        Py_RETURN_NONE;
    PyObject *lengths = PyBytes_FromStringAndSize(NULL, strings.length_bytes);
    PyObject *bitmap = lengths == NULL ? NULL : PyBytes_FromStringAndSize(NULL, strings.bitmap_bytes);
    PyObject *blob = bitmap == NULL ? NULL : PyBytes_FromStringAndSize(NULL, strings.blob_bytes);
    if (blob == NULL) {
        Py_XDECREF(lengths);
        Py_XDECREF(bitmap);
        return NULL;
    }
    write_strings(&strings, PyBytes_AsString(lengths), PyBytes_AsString(bitmap), PyBytes_AsString(blob));
    return Py_BuildValue("inNiNN", strings.form, strings.constant, lengths, strings.nulls, bitmap, blob);
}
