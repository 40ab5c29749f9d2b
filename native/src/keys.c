/* Dividing records by a hash of their keys: xxh3 with 64 bits, the default seed and the default secret. */

#include "keys.h"

#include "batches.h" /* refuses processors that are not little-endian */
#include "objects.h"

#define LONGEST 128 /* hashed here; longer keys take another way through the algorithm */
#define MOST_PARTITIONS 65536

/* The first words of the secret that the algorithm defines. */
static const uint64_t secret[16] = {
    UINT64_C(0xBE4BA423396CFEB8), UINT64_C(0x1CAD21F72C81017C), UINT64_C(0xDB979083E96DD4DE),
    UINT64_C(0x1F67B3B7A4A44072), UINT64_C(0x78E5C0CC4EE679CB), UINT64_C(0x2172FFCC7DD05A82),
    UINT64_C(0x8E2443F7744608B8), UINT64_C(0x4C263A81E69035E0), UINT64_C(0xCB00C391BB52283C),
    UINT64_C(0xA32E531B8B65D088), UINT64_C(0x4EF90DA297486471), UINT64_C(0xD8ACDEA946EF1938),
    UINT64_C(0x3F349CE33F76FAA8), UINT64_C(0x1D4F0BC7C7BBDCF9), UINT64_C(0x3159B4CD4BE0518A),
    UINT64_C(0x647378D9C97E9FC8),
};

static uint64_t word_at(const char *data)
{
    uint64_t word;
    memcpy(&word, data, 8);
    return word;
}

static uint64_t half_word_at(const char *data)
{
    uint32_t word;
    memcpy(&word, data, 4);
    return word;
}

static uint64_t rotated(uint64_t word, int bits)
{
    return word << bits | word >> (64 - bits);
}

/* The product of two words, its halves combined. */
static uint64_t folded(uint64_t one, uint64_t other)
{
    __extension__ unsigned __int128 product = (unsigned __int128)one * other;
    return (uint64_t)product ^ (uint64_t)(product >> 64);
}

static uint64_t mixed(const char *data, const uint64_t *with)
{
    return folded(word_at(data) ^ with[0], word_at(data + 8) ^ with[1]);
}

static uint64_t finished(uint64_t hash)
{
    hash = (hash ^ hash >> 37) * UINT64_C(0x165667919E3779F9);
    return hash ^ hash >> 32;
}

static uint64_t finished_short(uint64_t hash)
{
    hash = (hash ^ hash >> 33) * UINT64_C(0xC2B2AE3D27D4EB4F);
    hash = (hash ^ hash >> 29) * UINT64_C(0x165667B19E3779F9);
    return hash ^ hash >> 32;
}

/* The hash of at most LONGEST bytes. */
static uint64_t xxh3(const char *data, size_t size)
{
    if (size > 16) {
        uint64_t hash = size * UINT64_C(0x9E3779B185EBCA87);
        for (size_t pair = (size - 1) / 32 + 1; pair-- > 0;)
            hash += mixed(data + 16 * pair, secret + 4 * pair) +
                    mixed(data + size - 16 * (pair + 1), secret + 4 * pair + 2);
        return finished(hash);
    }
    if (size > 8) {
        uint64_t low = word_at(data) ^ secret[3] ^ secret[4], high = word_at(data + size - 8) ^ secret[5] ^ secret[6];
        return finished(size + __builtin_bswap64(low) + high + folded(low, high));
    }
    if (size > 3) {
        uint64_t hash = (half_word_at(data + size - 4) + (half_word_at(data) << 32)) ^ secret[1] ^ secret[2];
        hash = (hash ^ rotated(hash, 49) ^ rotated(hash, 24)) * UINT64_C(0x9FB21C651E98DF25);
        hash = (hash ^ ((hash >> 35) + size)) * UINT64_C(0x9FB21C651E98DF25);
        return hash ^ hash >> 28;
    }
    if (size > 0) {
        const uint8_t *bytes = (const uint8_t *)data;
        uint64_t all = (uint64_t)bytes[0] << 16 | (uint64_t)bytes[size / 2] << 24 | bytes[size - 1] | size << 8;
        return finished_short(all ^ (secret[0] & UINT32_MAX) ^ secret[0] >> 32);
    }
    return finished_short(secret[7] ^ secret[8]);
}

static int is_plain(PyObject *items)
{
    return PyList_CheckExact(items) || PyTuple_CheckExact(items);
}

static Py_ssize_t size_of(PyObject *items)
{
    return PyList_CheckExact(items) ? PyList_Size(items) : PyTuple_Size(items);
}

static PyObject *item_at(PyObject *items, Py_ssize_t number)
{
    return PyList_CheckExact(items) ? PyList_GetItem(items, number) : PyTuple_GetItem(items, number);
}

/* Find the partition of each key, and how many keys each partition has; 0 if a key is not `bytes`, or after an error,
 * or if other code, which may run in `hash_long`, changed the number of keys. */
static int choose(PyObject *keys, Py_ssize_t count, PyObject *hash_long, uint32_t partitions, uint16_t *chosen,
                  Py_ssize_t *shares)
{
    for (Py_ssize_t row = 0; row < count; row++) {
        PyObject *key = item_at(keys, row);
        if (!PyBytes_CheckExact(key))
            return 0;
        Py_ssize_t size = PyBytes_Size(key);
        uint64_t hash;
        if (size <= LONGEST) {
            hash = xxh3(PyBytes_AsString(key), (size_t)size);
        } else {
            Py_INCREF(key);
            PyObject *found = PyObject_CallFunctionObjArgs(hash_long, key, NULL);
            Py_DECREF(key);
            hash = found == NULL ? 0 : PyLong_AsUnsignedLongLong(found);
            Py_XDECREF(found);
            if (PyErr_Occurred() || size_of(keys) != count)
                return 0;
        }
        chosen[row] = (uint16_t)(hash % partitions);
        shares[chosen[row]]++;
    }
    return 1;
}

/* Make (number, columns) with a list of `rows` empty places for each column, but None for a column that is None. The
 * garbage collector, and what it runs, must not see these lists before deal() has filled them. */
static PyObject *make_share(uint32_t number, PyObject *columns, Py_ssize_t rows)
{
    PyObject *parts = PyList_New(0);
    for (Py_ssize_t column = 0; parts != NULL && column < PyList_Size(columns); column++) {
        PyObject *part = Py_None;
        if (PyList_GetItem(columns, column) == Py_None)
            Py_INCREF(part);
        else if ((part = PyList_New(rows)) != NULL)
            PyObject_GC_UnTrack(part);
        if (part == NULL || PyList_Append(parts, part) < 0)
            Py_CLEAR(parts);
        Py_XDECREF(part);
    }
    return parts == NULL ? NULL : Py_BuildValue("IN", number, parts);
}

/* Find the list that a partition gets of a column; NULL if it is no longer there: a finalizer can reach everything. */
static PyObject *list_in(PyObject *found, Py_ssize_t share, Py_ssize_t column, Py_ssize_t rows)
{
    PyObject *pair = share < PyList_Size(found) ? PyList_GetItem(found, share) : NULL;
    PyObject *parts = pair != NULL && PyTuple_CheckExact(pair) ? PyTuple_GetItem(pair, 1) : NULL;
    if (parts == NULL || !PyList_CheckExact(parts) || column >= PyList_Size(parts))
        return NULL;
    PyObject *part = PyList_GetItem(parts, column);
    return PyList_CheckExact(part) && PyList_Size(part) == rows ? part : NULL;
}

/* Put the rows of one column into the lists that make_share() made. No Python code runs here. */
static void deal(PyObject *whole, const uint16_t *chosen, Py_ssize_t count, PyObject **lists, Py_ssize_t *filled)
{
    for (Py_ssize_t row = 0; row < count; row++) {
        uint16_t number = chosen[row];
        PyList_SetItem(lists[number], filled[number]++, Py_NewRef(item_at(whole, row)));
    }
}

static int are_plain(PyObject *columns, Py_ssize_t count)
{
    for (Py_ssize_t column = 0; column < PyList_Size(columns); column++) {
        PyObject *whole = PyList_GetItem(columns, column);
        if (whole != Py_None && (!is_plain(whole) || size_of(whole) != count))
            return 0;
    }
    return 1;
}

/* Divide the columns among the partitions that have rows; None if they are no longer what they were. */
static PyObject *divided(PyObject *columns, Py_ssize_t count, uint32_t partitions, const uint16_t *chosen,
                         const Py_ssize_t *shares, PyObject **lists, Py_ssize_t *filled)
{
    PyObject *found = PyList_New(0);
    for (uint32_t number = 0; found != NULL && number < partitions; number++) {
        if (shares[number] == 0)
            continue;
        PyObject *share = make_share(number, columns, shares[number]);
        if (share == NULL || PyList_Append(found, share) < 0)
            Py_CLEAR(found);
        Py_XDECREF(share);
    }
    if (found == NULL)
        return NULL;
    if (!are_plain(columns, count)) { /* making the lists may have run a finalizer */
        Py_DECREF(found);
        Py_RETURN_NONE;
    }
    for (Py_ssize_t column = 0; column < PyList_Size(columns); column++) {
        PyObject *whole = PyList_GetItem(columns, column);
        if (whole == Py_None)
            continue;
        Py_ssize_t next = 0;
        for (uint32_t number = 0; number < partitions; number++) {
            filled[number] = 0;
            if (shares[number] != 0 && (lists[number] = list_in(found, next++, column, shares[number])) == NULL) {
                Py_DECREF(found);
                Py_RETURN_NONE;
            }
        }
        deal(whole, chosen, count, lists, filled);
        for (uint32_t number = 0; number < partitions; number++)
            if (shares[number] != 0)
                PyObject_GC_Track(lists[number]);
    }
    return found;
}

/* divide_by_key(keys, columns, partitions, hash_long): [(partition, columns of its rows)] for the partitions that have
 * rows; a key's hash modulo their number chooses. None if not all columns are lists or tuples of one length, or not
 * all keys are `bytes`. */
PyObject *divide_by_key(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t arguments)
{
    if (!check_count("divide_by_key", arguments, 4))
        return NULL;
    PyObject *keys = args[0], *columns = args[1];
    int64_t partitions = clamped(args[2]);
    if (PyErr_Occurred())
        return NULL;
    if (partitions < 1 || partitions > MOST_PARTITIONS || !is_plain(keys) || !PyList_CheckExact(columns))
        Py_RETURN_NONE;
    Py_ssize_t count = size_of(keys);
    size_t each = 2 * sizeof(Py_ssize_t) + sizeof(PyObject *);
    if (!are_plain(columns, count) || (size_t)count > (PY_SSIZE_T_MAX - each * MOST_PARTITIONS) / sizeof(uint16_t))
        Py_RETURN_NONE;
    char *memory = PyMem_Calloc(1, each * (size_t)partitions + sizeof(uint16_t) * (size_t)count);
    if (memory == NULL)
        return PyErr_NoMemory();
    Py_ssize_t *shares = (Py_ssize_t *)memory, *filled = shares + partitions;
    PyObject **lists = (PyObject **)(filled + partitions);
    uint16_t *chosen = (uint16_t *)(lists + partitions);
    PyObject *found = NULL;
    if (choose(keys, count, args[3], (uint32_t)partitions, chosen, shares))
        found = divided(columns, count, (uint32_t)partitions, chosen, shares, lists, filled);
    else if (!PyErr_Occurred())
        found = Py_NewRef(Py_None);
    PyMem_Free(memory);
    return found;
}
