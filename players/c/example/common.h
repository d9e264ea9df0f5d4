/* What hosts share on any device. Problems go to stderr. */
#ifndef CML_EXAMPLE_COMMON_H
#define CML_EXAMPLE_COMMON_H

#include "cml_backend.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline void print_error(const cml_error *error) {
    fprintf(stderr, "%s: %s\n", cml_status_name(error->status), error->text);
}

static inline void print_log(void *unused, cml_log_level level, const char *message) {
    (void)unused;
    fprintf(stderr, "%s%s\n", level == CML_LOG_INFO ? "" : "warning: ", message);
}

/* Loads and builds a network, as behind a loading screen; `bytes` are not needed any more then. The
 * scheduler takes over the backend. Returns 0 if that fails. */
static inline int load_network(cml_backend *backend, const void *bytes, size_t size,
                               cml_scheduler **scheduler, cml_net **net) {
    cml_options options;
    cml_error error;
    cml_status status;
    memset(&options, 0, sizeof options);
    options.backend = backend;
    options.log = print_log;
    status = cml_create(&options, scheduler, &error);
    if (status == CML_OK)
        status = cml_load_cooked(*scheduler, bytes, size, CML_TRUSTED, net, &error);
    if (status == CML_OK)
        while ((status = cml_build(*net, 10.0, &error)) == CML_PENDING) {} /* an engine draws */
    if (status != CML_OK) print_error(&error);
    return status == CML_OK;
}

/* Reads a number of 0 or more; returns 0 if the word is none. */
static inline int read_number(const char *word, double *to) {
    char *end;
    *to = strtod(word, &end);
    return end != word && *end == 0 && *to >= 0 && *to < 1e15;
}

/* Copies a text and ends it with a zero. */
static inline void copy_text(char *to, size_t room, cml_text text) {
    snprintf(to, room, "%.*s", (int)text.length, text.data);
}

#ifdef _WIN32 /* its long has 32 bits, and files may be larger */
#define file_seek _fseeki64
#define file_tell _ftelli64
#else
#define file_seek fseek
#define file_tell ftell
#endif

/* Reads a whole file. Returns NULL, and names the file on stderr, if it cannot be read. */
static inline void *read_whole(const char *path, size_t *size) {
    FILE *in = fopen(path, "rb");
    int64_t end = in != NULL && file_seek(in, 0, SEEK_END) == 0 ? file_tell(in) : -1;
    int is_file = end >= 0 && end < INT64_MAX; /* which is the length of a folder */
    char *data = is_file ? (char *)malloc((size_t)end + 1) : NULL;
    if (data != NULL) rewind(in);
    *size = data != NULL ? fread(data, 1, (size_t)end, in) : 0;
    if (in != NULL) fclose(in);
    if (data != NULL && *size == (size_t)end) return data;
    fprintf(stderr, "cannot read '%s'\n", path);
    free(data);
    return NULL;
}

/* Writes a whole file; returns 0 if that fails. */
static inline int write_whole(const char *path, const void *data, size_t size) {
    FILE *out = fopen(path, "wb");
    int is_written = out != NULL && fwrite(data, 1, size, out) == size;
    if (out != NULL) fclose(out);
    return is_written;
}

/* Returns the FILE of the word NAME=FILE, which becomes NULL; NULL if there is no such word. */
static inline const char *take_file(char **words, size_t count, const char *name) {
    size_t length = strlen(name);
    for (size_t i = 0; i < count; i++) {
        const char *word = words[i];
        if (word == NULL || strncmp(word, name, length) != 0 || word[length] != '=') continue;
        words[i] = NULL;
        return word + length + 1;
    }
    return NULL;
}

enum { MAX_INPUTS = 64 };

typedef struct file_inputs { /* the inputs of a network, from files of plain numbers */
    cml_input items[MAX_INPUTS];
    char names[MAX_INPUTS][256];
    size_t count;
} file_inputs;

/* Reads the inputs from the files of the words NAME=FILE; those without a file are zeros. Returns 0
 * if one cannot be read. `to` begins with zeros. */
static inline int read_inputs(const cml_net *net, char **words, size_t word_count,
                              file_inputs *to) {
    cml_shape shape;
    for (; cml_get_input_shape(net, (uint32_t)to->count, &shape) == CML_OK; to->count++) {
        cml_input *input = &to->items[to->count];
        char *name = to->names[to->count];
        copy_text(name, sizeof to->names[0], shape.name);
        const char *path = take_file(words, word_count, name);
        input->name = name;
        input->bytes = (size_t)(4 * shape.elements);
        input->data = path != NULL ? read_whole(path, &input->bytes) : calloc(1, input->bytes + 1);
        if (input->data == NULL) return 0;
    }
    return 1;
}

static inline void free_inputs(const file_inputs *of) {
    for (size_t i = 0; i < of->count; i++) free((void *)of->items[i].data);
}

#endif
