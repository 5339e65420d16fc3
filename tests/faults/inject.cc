// SPDX-License-Identifier: Apache-2.0
// SPDX-FileCopyrightText: The kvtool authors
// A preloaded library that makes one call of one function fail, or kills the process there, or
// denies what a file system may lack. Steered by the environment:
//   FAULT_CALL=write FAULT_AT=3 FAULT_ERRNO=28   the third write fails with ENOSPC
//   FAULT_CALL=write FAULT_AT=3 FAULT_KILL=1     the process dies of SIGKILL there, as in a power
//   cut FAULT_DENY=tmpfile,proc,exchange,nfs         no O_TMPFILE; no /proc; no RENAME_EXCHANGE;
//   rename says ESTALE
//                                                though it was done, as NFS may after a lost reply
//   FAULT_COUNTS=FILE   how often each function was called
//   FAULT_LOG=FILE      what would reach the disk, in order: creations, writes, syncs, renames
// Calls are counted from the first line of main on, in all threads.
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <initializer_list>

namespace {

enum Call {
  kOpen,
  kWrite,
  kPwrite,
  kFsync,
  kRename,
  kLink,
  kMmap,
  kTruncate,
  kThread,
  kMalloc,
  kCalls
};
constexpr const char* kNames[kCalls] = {"open", "write", "pwrite",    "fsync",          "rename",
                                        "link", "mmap",  "ftruncate", "pthread_create", "malloc"};

std::atomic<long> counts[kCalls];
std::atomic<bool> counting = false;
int fault_call = -1, fault_errno = EIO, log_descriptor = -1;
long fault_at = 0;
bool fault_kills = false, deny_tmpfile = false, deny_proc = false, deny_exchange = false,
     deny_nfs = false;

template <typename Function>
Function* Next(Function*, const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}
#define NEXT(name) static auto* const next = Next(&name, #name)

// Returns true if this call is to fail. Does not return if the call is to kill the process.
bool Fails(Call call) {
  if (!counting) return false;
  const long now = ++counts[call];
  if (call != fault_call || now != fault_at) return false;
  if (fault_kills) ::kill(::getpid(), SIGKILL);
  errno = fault_errno;
  return true;
}

// Writes one line of the log with the system call itself, so that it is neither counted nor failed.
__attribute__((format(printf, 1, 2))) void Log(const char* format, ...) {
  if (log_descriptor < 0 || !counting) return;
  char line[8600];
  va_list arguments;
  va_start(arguments, format);
  const int size = std::vsnprintf(line, sizeof(line), format, arguments);
  va_end(arguments);
  if (size > 0 && ::syscall(1 /* SYS_write */, log_descriptor, line, size) != size) std::abort();
}

// Identifies a descriptor's file in the log by device and inode, which renames do not change.
struct FileId {
  unsigned long device = 0, inode = 0;
  bool regular = false;
};
FileId IdOf(int descriptor) {
  struct stat status;
  const int saved = errno;
  FileId id;
  if (::fstat(descriptor, &status) == 0) {
    id = {status.st_dev, status.st_ino, S_ISREG(status.st_mode)};
  }
  errno = saved;
  return id;
}

bool Denied(const char* path) {
  return deny_proc && counting && std::strncmp(path, "/proc", 5) == 0;
}

struct Setup {
  Setup() {
    const char* call = std::getenv("FAULT_CALL");
    for (int i = 0; call != nullptr && i < kCalls; ++i) {
      if (std::strcmp(call, kNames[i]) == 0) fault_call = i;
    }
    if (const char* at = std::getenv("FAULT_AT")) fault_at = std::atol(at);
    if (const char* number = std::getenv("FAULT_ERRNO")) fault_errno = std::atoi(number);
    fault_kills = std::getenv("FAULT_KILL") != nullptr;
    if (const char* deny = std::getenv("FAULT_DENY")) {
      deny_tmpfile = std::strstr(deny, "tmpfile") != nullptr;
      deny_proc = std::strstr(deny, "proc") != nullptr;
      deny_exchange = std::strstr(deny, "exchange") != nullptr;
      deny_nfs = std::strstr(deny, "nfs") != nullptr;
    }
    if (const char* log = std::getenv("FAULT_LOG")) {
      log_descriptor = ::open(log, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    }
    // Child processes run without injected faults.
    for (const char* name : {"FAULT_CALL", "FAULT_DENY", "FAULT_LOG"}) ::unsetenv(name);
  }
  ~Setup() {
    counting = false;
    const char* path = std::getenv("FAULT_COUNTS");
    if (path == nullptr) return;
    std::FILE* file = std::fopen(path, "w");
    if (file == nullptr) return;
    for (int i = 0; i < kCalls; ++i) std::fprintf(file, "%s %ld\n", kNames[i], counts[i].load());
    std::fclose(file);
  }
} setup;

// Path of a name in an open folder, for the log.
class Shown {
 public:
  Shown(int folder, const char* name) {
    const int saved = errno;
    char link[64];
    std::snprintf(link, sizeof(link), "/proc/self/fd/%d", folder);
    const ssize_t size =
        folder == AT_FDCWD || name[0] == '/' ? -1 : ::readlink(link, path_, kMostOfFolder);
    const int begun = size < 0 ? 0 : static_cast<int>(size);
    std::snprintf(path_ + begun, sizeof(path_) - begun, "%s%s", begun > 0 ? "/" : "", name);
    errno = saved;
  }
  const char* path() const { return path_; }

 private:
  static constexpr size_t kMostOfFolder = 4000;
  char path_[2 * kMostOfFolder];
};

int OpenCounted(int folder, const char* path, int flags, mode_t mode) {
  NEXT(openat);
  if (Denied(path)) {
    errno = ENOENT;
    return -1;
  }
  if (deny_tmpfile && (flags & O_TMPFILE) == O_TMPFILE) {
    errno = EOPNOTSUPP;
    return -1;
  }
  if (Fails(kOpen)) return -1;
  const int descriptor = next(folder, path, flags, mode);
  const bool is_unnamed = (flags & O_TMPFILE) == O_TMPFILE;
  if (descriptor >= 0 && (is_unnamed || (flags & (O_CREAT | O_TRUNC)) != 0)) {
    const FileId id = IdOf(descriptor);
    if (id.regular)
      Log("%s %lu:%lu %s\n", is_unnamed ? "unnamed" : "create", id.device, id.inode,
          Shown(folder, path).path());
  }
  return descriptor;
}

template <typename Name>
int Renamed(bool done_then_stale, int result, Name from, Name to, const char* word) {
  if (result == 0) Log("%s %s\t%s\n", word, from, to);
  if (result == 0 && done_then_stale) {
    errno = ESTALE;
    return -1;
  }
  return result;
}

}  // namespace

#define MODE_OF(flags, last)                  \
  mode_t mode = 0;                            \
  if ((flags & (O_CREAT | O_TMPFILE)) != 0) { \
    va_list arguments;                        \
    va_start(arguments, last);                \
    mode = va_arg(arguments, mode_t);         \
    va_end(arguments);                        \
  }

extern "C" {

int open(const char* path, int flags, ...) {
  MODE_OF(flags, flags)
  return OpenCounted(AT_FDCWD, path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  MODE_OF(flags, flags)
  return OpenCounted(AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char* path, int flags, ...) {
  MODE_OF(flags, flags)
  return OpenCounted(folder, path, flags, mode);
}
int openat64(int folder, const char* path, int flags, ...) {
  MODE_OF(flags, flags)
  return OpenCounted(folder, path, flags, mode);
}

ssize_t write(int descriptor, const void* bytes, size_t size) {
  NEXT(write);
  // Writing messages is not tested: if the terminal is gone, the exit status still shows the
  // result.
  if (descriptor == 2) return next(descriptor, bytes, size);
  if (Fails(kWrite)) return -1;
  const FileId id = IdOf(descriptor);
  if (id.regular) Log("write %lu:%lu %zu\n", id.device, id.inode, size);
  return next(descriptor, bytes, size);
}
ssize_t pwrite(int descriptor, const void* bytes, size_t size, off_t at) {
  NEXT(pwrite);
  if (Fails(kPwrite)) return -1;
  const FileId id = IdOf(descriptor);
  Log("write %lu:%lu %zu\n", id.device, id.inode, size);
  return next(descriptor, bytes, size, at);
}
ssize_t pwrite64(int descriptor, const void* bytes, size_t size, off_t at) {
  return pwrite(descriptor, bytes, size, at);
}
int fsync(int descriptor) {
  NEXT(fsync);
  if (Fails(kFsync)) return -1;
  const FileId id = IdOf(descriptor);
  const int done = next(descriptor);
  if (done == 0) Log("%s %lu:%lu\n", id.regular ? "sync" : "syncdir", id.device, id.inode);
  return done;
}
int fdatasync(int descriptor) { return fsync(descriptor); }
int syncfs(int descriptor) {
  NEXT(syncfs);
  const int done = next(descriptor);
  if (done == 0) Log("syncall\n");
  return done;
}
int mkdir(const char* path, mode_t mode) {
  NEXT(mkdir);
  const int done = next(path, mode);
  if (done == 0) Log("mkdir %s\n", path);
  return done;
}
int mkdirat(int folder, const char* path, mode_t mode) {
  NEXT(mkdirat);
  const int done = next(folder, path, mode);
  if (done == 0) Log("mkdir %s\n", Shown(folder, path).path());
  return done;
}
int ftruncate(int descriptor, off_t size) {
  NEXT(ftruncate);
  if (Fails(kTruncate)) return -1;
  const FileId id = IdOf(descriptor);
  Log("write %lu:%lu 0\n", id.device, id.inode);
  return next(descriptor, size);
}
int ftruncate64(int descriptor, off_t size) { return ftruncate(descriptor, size); }

int rename(const char* from, const char* to) {
  NEXT(rename);
  if (Fails(kRename)) return -1;
  return Renamed(deny_nfs, next(from, to), from, to, "rename");
}
int renameat(int from_folder, const char* from, int to_folder, const char* to) {
  NEXT(renameat);
  if (Fails(kRename)) return -1;
  const Shown before(from_folder, from), after(to_folder, to);
  return Renamed(deny_nfs, next(from_folder, from, to_folder, to), before.path(), after.path(),
                 "rename");
}
int renameat2(int from_folder, const char* from, int to_folder, const char* to, unsigned flags) {
  NEXT(renameat2);
  if (deny_exchange && flags != 0) {
    errno = EINVAL;
    return -1;
  }
  if (Fails(kRename)) return -1;
  const Shown before(from_folder, from), after(to_folder, to);
  return Renamed(deny_nfs && flags == 0, next(from_folder, from, to_folder, to, flags),
                 before.path(), after.path(), flags == 2 ? "exchange" : "rename");
}
int linkat(int from_folder, const char* from, int to_folder, const char* to, int flags) {
  NEXT(linkat);
  if (Denied(from)) {
    errno = ENOENT;
    return -1;
  }
  if (Fails(kLink)) return -1;
  const int done = next(from_folder, from, to_folder, to, flags);
  if (done == 0) {
    struct stat status;
    if (::fstatat(to_folder, to, &status, 0) == 0) {
      Log("link %lu:%lu\t%s\n", static_cast<unsigned long>(status.st_dev),
          static_cast<unsigned long>(status.st_ino), Shown(to_folder, to).path());
    }
  }
  return done;
}

void* mmap(void* at, size_t size, int protection, int flags, int descriptor, off_t offset) {
  NEXT(mmap);
  if (Fails(kMmap)) return MAP_FAILED;
  return next(at, size, protection, flags, descriptor, offset);
}
void* mmap64(void* at, size_t size, int protection, int flags, int descriptor, off_t offset) {
  return mmap(at, size, protection, flags, descriptor, offset);
}

int pthread_create(pthread_t* thread, const pthread_attr_t* attributes, void* (*run)(void*),
                   void* with) {
  NEXT(pthread_create);
  if (Fails(kThread)) return EAGAIN;
  return next(thread, attributes, run, with);
}

// glibc's own names of these functions: finding malloc with dlsym would itself need malloc.
void* __libc_malloc(size_t size);
void* __libc_calloc(size_t count, size_t size);
void* __libc_realloc(void* old, size_t size);
void* __libc_memalign(size_t alignment, size_t size);

void* malloc(size_t size) { return Fails(kMalloc) ? nullptr : __libc_malloc(size); }
void* calloc(size_t count, size_t size) {
  return Fails(kMalloc) ? nullptr : __libc_calloc(count, size);
}
void* realloc(void* old, size_t size) {
  return Fails(kMalloc) ? nullptr : __libc_realloc(old, size);
}
void* aligned_alloc(size_t alignment, size_t size) {
  return Fails(kMalloc) ? nullptr : __libc_memalign(alignment, size);
}
int posix_memalign(void** result, size_t alignment, size_t size) {
  if (Fails(kMalloc)) return ENOMEM;
  *result = __libc_memalign(alignment, size);
  return *result == nullptr ? ENOMEM : 0;
}

// Calls before main belong to the dynamic linker and static objects; no program can handle their
// failure.
using Main = int(int, char**, char**);
static Main* program_main = nullptr;
static int CountedMain(int argc, char** argv, char** environment) {
  counting = true;
  return program_main(argc, argv, environment);
}
int __libc_start_main(Main* main, int argc, char** argv, void (*init)(), void (*fini)(),
                      void (*rtld_fini)(), void* stack_end) {
  NEXT(__libc_start_main);
  program_main = main;
  return next(CountedMain, argc, argv, init, fini, rtld_fini, stack_end);
}

}  // extern "C"
