#include "verify/build/object_check.h"

#include <elf.h>
#include <string.h>

static const struct {
    Elf64_Sxword tag;
    const char *name;
} running[] = {{DT_INIT, "DT_INIT"},
               {DT_FINI, "DT_FINI"},
               {DT_INIT_ARRAY, "DT_INIT_ARRAY"},
               {DT_FINI_ARRAY, "DT_FINI_ARRAY"},
               {DT_PREINIT_ARRAY, "DT_PREINIT_ARRAY"},
               /* Other objects that are loaded with this one, or in the place of a library that it names. */
               {DT_AUDIT, "DT_AUDIT"},
               {DT_DEPAUDIT, "DT_DEPAUDIT"},
               {DT_AUXILIARY, "DT_AUXILIARY"},
               {DT_FILTER, "DT_FILTER"}};

enum { MAX_SEGMENTS = 64, PAGE = 4096 };

struct view {
    const unsigned char *p;
    size_t n;
    Elf64_Phdr segment[MAX_SEGMENTS];
    int n_segments;
};

static bool read_headers(struct view *v) {
    Elf64_Ehdr h;
    if (v->n < sizeof h) return false;
    memcpy(&h, v->p, sizeof h);
    if (memcmp(h.e_ident, ELFMAG, SELFMAG) != 0 || h.e_ident[EI_CLASS] != ELFCLASS64 ||
        h.e_ident[EI_DATA] != ELFDATA2LSB || h.e_type != ET_DYN || h.e_phentsize != sizeof(Elf64_Phdr) ||
        h.e_phnum < 1 || h.e_phnum > MAX_SEGMENTS)
        return false;
    if (h.e_phoff > v->n || (v->n - h.e_phoff) / sizeof(Elf64_Phdr) < h.e_phnum) return false;
    v->n_segments = h.e_phnum;
    memcpy(v->segment, v->p + h.e_phoff, h.e_phnum * sizeof(Elf64_Phdr));
    return true;
}

/* Returns whether two segments share a page. Address space is handed out in pages, so they would hide parts of each
 * other. */
static bool pages_overlap(const Elf64_Phdr *a, const Elf64_Phdr *b) {
    const Elf64_Addr mask = ~(Elf64_Addr)(PAGE - 1), a_end = (a->p_vaddr + a->p_memsz + PAGE - 1) & mask,
                     b_end = (b->p_vaddr + b->p_memsz + PAGE - 1) & mask;
    return (a->p_vaddr & mask) < b_end && (b->p_vaddr & mask) < a_end;
}

/* Returns whether what is loaded lies in the file, in order and apart, so that an address has one meaning. */
static bool segments_plain(const struct view *v) {
    /* This limit keeps every sum of two from wrapping. */
    const Elf64_Addr most = (Elf64_Addr)1 << 40;
    const Elf64_Phdr *last = NULL;
    for (int i = 0; i < v->n_segments; i++) {
        const Elf64_Phdr *s = &v->segment[i];
        if (s->p_type != PT_LOAD) continue;
        if (s->p_vaddr > most || s->p_memsz > most || s->p_memsz == 0 || s->p_offset > v->n ||
            s->p_filesz > v->n - s->p_offset || s->p_filesz > s->p_memsz || (s->p_vaddr - s->p_offset) % PAGE != 0)
            return false;
        if (last && (s->p_vaddr < last->p_vaddr || pages_overlap(last, s))) return false;
        last = s;
    }
    return last != NULL;
}

/* Finds the offset of an address of the file, and in *room how many bytes of the segment follow there. False: it lies
 * in no segment. */
static bool file_offset(const struct view *v, Elf64_Addr at, size_t *offset, size_t *room) {
    for (int i = 0; i < v->n_segments; i++) {
        const Elf64_Phdr *s = &v->segment[i];
        if (s->p_type != PT_LOAD || at < s->p_vaddr || at - s->p_vaddr >= s->p_filesz) continue;
        *offset = (size_t)(s->p_offset + (at - s->p_vaddr));
        *room = (size_t)(s->p_filesz - (at - s->p_vaddr));
        return true;
    }
    return false;
}

static const char *running_tag(Elf64_Sxword tag) {
    for (size_t i = 0; i < ARRAY_LEN(running); i++)
        if (running[i].tag == tag) return running[i].name;
    return NULL;
}

enum load_finding load_check(const void *object, size_t n, const char **tag) {
    struct view v = {.p = object, .n = n};
    *tag = NULL;
    if (!read_headers(&v) || !segments_plain(&v)) return LOAD_UNREADABLE;
    const Elf64_Phdr *dynamic = NULL;
    for (int i = 0; i < v.n_segments; i++) {
        if (v.segment[i].p_type != PT_DYNAMIC) continue;
        if (dynamic) return LOAD_UNREADABLE;
        dynamic = &v.segment[i];
    }
    size_t at, room;
    if (!dynamic || !file_offset(&v, dynamic->p_vaddr, &at, &room)) return LOAD_UNREADABLE;
    /* The loader goes on until DT_NULL, whatever the size says. */
    for (; room >= sizeof(Elf64_Dyn); at += sizeof(Elf64_Dyn), room -= sizeof(Elf64_Dyn)) {
        Elf64_Dyn entry;
        memcpy(&entry, v.p + at, sizeof entry);
        if (entry.d_tag == DT_NULL) return LOAD_CLEAN;
        *tag = running_tag(entry.d_tag);
        if (*tag) return LOAD_RUNS;
    }
    return LOAD_UNREADABLE;
}
