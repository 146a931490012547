/* tests/cuda/emulator/shared.cpp - static shared memory, poisoned when a block begins.
 *
 * A `__shared__` variable is a thread-local static of a function here, and no macro can tell the emulator its address; the
 * program's symbol table does.  There a static of a function is _ZZ...; one that is made at run time has a guard _ZGVZ..., and is
 * none of a kernel's. */
#include "tests/cuda/emulator/block.h"
#include "tests/cuda/emulator/protect.h"
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <set>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <string>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>
#include <vector>

namespace twin
{
namespace
{

struct variable {
    size_t at, bytes; /* from the start of the program's thread-local memory */
};

const unsigned char *map_program(size_t *bytes)
{
    const int file = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    struct stat st = {};
    void *at = MAP_FAILED;

    if (file >= 0 && fstat(file, &st) == 0)
        at = mmap(nullptr, static_cast<size_t>(st.st_size), PROT_READ, MAP_PRIVATE, file, 0);
    if (at == MAP_FAILED) {
        perror("emulator: the program's symbols");
        abort();
    }
    close(file);
    *bytes = static_cast<size_t>(st.st_size);
    return static_cast<const unsigned char *>(at);
}

void collect(const ElfW(Sym) * symbols, size_t count, const char *names, std::vector<variable> *out)
{
    std::set<std::string> guarded;

    for (size_t i = 0; i < count; i++)
        if (strncmp(names + symbols[i].st_name, "_ZGVZ", 5) == 0)
            guarded.insert(std::string("_Z") + (names + symbols[i].st_name + 4));
    for (size_t i = 0; i < count; i++) {
        const char *name = names + symbols[i].st_name;

        if ((symbols[i].st_info & 0xf) == STT_TLS && strncmp(name, "_ZZ", 3) == 0 && guarded.count(name) == 0)
            out->push_back({symbols[i].st_value, symbols[i].st_size});
    }
}

std::vector<variable> find_variables()
{
    size_t bytes;
    const unsigned char *const file = map_program(&bytes);
    const auto *const header = reinterpret_cast<const ElfW(Ehdr) *>(file);
    const auto *const sections = reinterpret_cast<const ElfW(Shdr) *>(file + header->e_shoff);
    std::vector<variable> found;

    for (size_t i = 0; i < header->e_shnum; i++) {
        const ElfW(Shdr) &table = sections[i];

        if (table.sh_type == SHT_SYMTAB)
            collect(reinterpret_cast<const ElfW(Sym) *>(file + table.sh_offset), table.sh_size / sizeof(ElfW(Sym)),
                    reinterpret_cast<const char *>(file + sections[table.sh_link].sh_offset), &found);
    }
    munmap(const_cast<unsigned char *>(file), bytes);
    return found;
}

/* The program comes first; its part is the calling thread's. */
int take_memory(struct dl_phdr_info *info, size_t, void *out)
{
    *static_cast<void **>(out) = info->dlpi_tls_data;
    return 1;
}

} // namespace

void poison_static_shared()
{
    static const std::vector<variable> *const variables = new std::vector<variable>(find_variables());
    void *memory = nullptr;

    dl_iterate_phdr(take_memory, &memory);
    for (const variable &v : *variables)
        memset(static_cast<unsigned char *>(memory) + v.at, POISON, v.bytes);
}

} // namespace twin
