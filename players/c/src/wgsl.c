/* Decides whether a shader compiler may have the WGSL of an untrusted file. Compilers abort the
 * process for code that is nested too deeply or expands to too much. The rules and their numbers
 * are those of cml_engine/cooked/wgsl.py, which explains them. */
#include "internal.h"

typedef struct wgsl_bracket { /* an open bracket */
    char kind;                /* the character; '<' of a template, 'a' of an array's template */
    uint32_t pending;         /* tokens directly in it since the last separator */
    uint64_t size;            /* of the code before it */
    uint64_t element;         /* size of its arguments before the last comma */
    size_t argument;          /* where the argument behind the last comma begins; 0: none */
} wgsl_bracket;

typedef struct wgsl_name { /* a function, struct, alias or constant */
    cml_text text;         /* the first member: names are sorted by it */
    int is_known;          /* its declaration has ended */
    uint64_t size;         /* of its declaration; until is_known, of the code before it */
    uint32_t within;       /* depth of brackets at its declaration */
} wgsl_name;

typedef struct wgsl_scan {
    const char *text;
    size_t length;
    uint32_t depth, pending, name_count, open_count;
    uint64_t size; /* tokens so far; a name counts as its declaration */
    wgsl_bracket brackets[COOKED_MOST_DEPTH + 1];
    wgsl_name names[COOKED_MOST_NAMES];
    wgsl_name *open[COOKED_MOST_NAMES]; /* declarations that have not ended */
} wgsl_scan;

static int is_letter(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
static int is_digit(char c) { return c >= '0' && c <= '9'; }
static int is_blank(char c) { return c == ' ' || c == '\t' || c == '\r' || c == '\n'; }

static int is_token(cml_text token, const char *text) {
    return is_same_text(token, (cml_text){text, strlen(text)});
}

static int is_declaring(cml_text t) {
    return is_token(t, "fn") || is_token(t, "struct") || is_token(t, "alias") ||
           is_token(t, "const") || is_token(t, "override");
}

static int is_array(cml_text t) { return is_token(t, "array") || is_token(t, "binding_array"); }

/* Returns the token at or behind `*at`, empty at the end of the code, and moves `*at` behind it. */
static cml_text next_token(const wgsl_scan *s, size_t *at) {
    size_t i = *at, start;
    for (;;) {
        while (i < s->length && is_blank(s->text[i])) i++;
        if (i + 1 >= s->length || s->text[i] != '/' || s->text[i + 1] != '/') break;
        while (i < s->length && s->text[i] != '\r' && s->text[i] != '\n') i++;
    }
    start = i;
    if (i < s->length) {
        char first = s->text[i++], next = i < s->length ? s->text[i] : 0;
        int is_number = is_digit(first);
        if (is_number || is_letter(first)) {
            while (i < s->length && (is_letter(s->text[i]) || is_digit(s->text[i]) ||
                                     (is_number && s->text[i] == '.')))
                i++;
        } else if ((first == '-' && next == '>') || (first == '<' && next == '<') ||
                   ((first == '<' || first == '>') && next == '=')) {
            i++;
        }
    }
    *at = i;
    return (cml_text){s->text + start, i - start};
}

/* Returns the declared name, or NULL. */
static wgsl_name *name_of(wgsl_scan *s, cml_text token) {
    return bsearch(&token, s->names, s->name_count, sizeof *s->names, compare_texts);
}

/* Collects the declared names, sorted. Like the functions below it returns the problem, or NULL. */
static const char *find_names(wgsl_scan *s) {
    static const char problem[] = "declares too many names, or one of them twice";
    cml_text before = {"", 0}, token;
    size_t at = 0;
    while ((token = next_token(s, &at)).length > 0) {
        if (is_declaring(before)) {
            if (s->name_count == COOKED_MOST_NAMES) return problem;
            s->names[s->name_count++].text = token;
        }
        before = token;
    }
    qsort(s->names, s->name_count, sizeof *s->names, compare_texts);
    for (uint32_t i = 1; i < s->name_count; i++)
        if (is_same_text(s->names[i - 1].text, s->names[i].text)) return problem;
    return NULL;
}

static void end_item(wgsl_scan *s) {
    wgsl_bracket *top = s->brackets + s->depth;
    s->pending -= top->pending;
    top->pending = 0;
}

static void pop_bracket(wgsl_scan *s) {
    end_item(s);
    s->depth--;
}

static const char *push_bracket(wgsl_scan *s, char kind) {
    if (s->depth == COOKED_MOST_DEPTH) return "has too many brackets in each other";
    s->depth++;
    s->brackets[s->depth] = (wgsl_bracket){.kind = kind, .size = s->size};
    return NULL;
}

/* Counts a token in everything that is open. */
static const char *count_token(wgsl_scan *s, cml_text token, cml_text before) {
    wgsl_name *name = name_of(s, token);
    if (is_declaring(before)) {
        name->size = s->size;
        name->within = s->depth;
        s->open[s->open_count++] = name;
    } else if (name != NULL) {
        if (!name->is_known) return "uses a name before the end of its declaration";
        s->size += name->size;
    }
    s->size++;
    s->pending++;
    s->brackets[s->depth].pending++;
    return s->pending > COOKED_MOST_PENDING ? "has too long a statement or chain of else" : NULL;
}

/* Returns the size of an array that is a plain number, such as 4, 4u or i32(4), else -1. */
static int64_t array_size(const char *text, size_t length) {
    int64_t size = 0;
    size_t digits = 0;
    while (length > 0 && is_blank(text[length - 1])) length--;
    for (; length > 0 && is_blank(*text); length--) text++;
    if (length > 4 && (memcmp(text, "i32(", 4) == 0 || memcmp(text, "u32(", 4) == 0)) {
        text += 4;
        length -= 4;
    }
    if (length > 0 && text[length - 1] == ')') length--;
    if (length > 0 && (text[length - 1] == 'i' || text[length - 1] == 'u')) length--;
    for (; digits < length && digits < 9 && is_digit(text[digits]); digits++)
        size = 10 * size + (text[digits] - '0');
    return digits > 0 && digits == length ? size : -1;
}

static const char *close_template(wgsl_scan *s, size_t end) {
    wgsl_bracket *top = s->brackets + s->depth;
    if (top->kind == 'a' && top->argument > 0) {
        int64_t count = array_size(s->text + top->argument, end - 1 - top->argument);
        if (count < 0) return "has an array whose size is no plain number";
        if (count > 0 && top->element > COOKED_MOST_ELEMENTS / (uint64_t)count)
            return "has an array of too many elements";
        s->size += top->element * (uint64_t)count;
    }
    if (top->kind == 'a' || top->kind == '<') { /* it may also be a comparison */
        s->depth--;
        s->brackets[s->depth].pending += top->pending;
    }
    return NULL;
}

/* Opens or closes a bracket, or ends a statement. */
static const char *place_bracket(wgsl_scan *s, char token) {
    char opens = token == ')' ? '(' : token == ']' ? '[' : token == '}' ? '{' : 0;
    while (token != '(' && token != '[') {
        char kind = s->brackets[s->depth].kind;
        if (kind == 'a') return "has an array whose type does not end";
        if (kind != '<') break;
        pop_bracket(s); /* the '<' was a comparison */
    }
    if (token == '(' || token == '[' || token == '{') return push_bracket(s, token);
    if (opens != 0) {
        if (s->brackets[s->depth].kind != opens) return "has brackets that do not match";
        pop_bracket(s);
    }
    if (token == ';') end_item(s);
    if (token == ')' || token == ']') return NULL;
    while (s->open_count > 0 && s->open[s->open_count - 1]->within == s->depth) {
        wgsl_name *name = s->open[--s->open_count];
        name->size = s->size - name->size;
        name->is_known = 1;
    }
    return NULL;
}

static const char *place_token(wgsl_scan *s, cml_text token, cml_text before, size_t end) {
    char sign = token.length == 1 ? *token.data : 0;
    int is_type = is_array(before);
    if (is_type && sign != '<') return "has an array without a type";
    if (sign == '<' && before.length > 0 && is_letter(*before.data))
        return push_bracket(s, is_type ? 'a' : '<');
    if (sign == '>') return close_template(s, end);
    if (sign == ',') {
        wgsl_bracket *top = s->brackets + s->depth;
        end_item(s);
        top->argument = end;
        top->element = s->size - 1 - top->size;
        return NULL;
    }
    return sign != 0 && strchr("()[]{};", sign) != NULL ? place_bracket(s, sign) : NULL;
}

static const char *scan_tokens(wgsl_scan *s) {
    cml_text before = {"", 0}, token;
    size_t at = 0;
    const char *problem = find_names(s);
    while (problem == NULL && (token = next_token(s, &at)).length > 0) {
        if (is_token(before, "}") && !is_token(token, "else")) end_item(s);
        problem = count_token(s, token, before);
        if (problem == NULL) problem = place_token(s, token, before, at);
        if (problem == NULL && s->size > COOKED_MOST_EXPANDED) problem = "expands to too much";
        before = token;
    }
    return problem == NULL && s->depth > 0 ? "has brackets that do not end" : problem;
}

static const char *scan_letters(const char *text, size_t length) {
    if (length > COOKED_MOST_WGSL) return "is too long";
    for (size_t i = 0; i < length; i++) {
        if (!is_blank(text[i]) && (text[i] < ' ' || text[i] > '~')) return "is not ASCII";
        if (text[i] == '/' && i + 1 < length && text[i + 1] == '*')
            return "has comments of several lines";
    }
    return NULL;
}

cml_status cml__scan_wgsl(heap *memory, const char *text, size_t length, const char **problem) {
    *problem = scan_letters(text, length);
    if (*problem != NULL) return CML_ERROR_CORRUPT;
    wgsl_scan *s = cml__heap_alloc(memory, 1, sizeof *s);
    if (s == NULL) return CML_ERROR_MEMORY;
    s->text = text;
    s->length = length;
    *problem = scan_tokens(s);
    cml__heap_free(memory, s);
    return *problem == NULL ? CML_OK : CML_ERROR_CORRUPT;
}
