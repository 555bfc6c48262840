#include "aici/base/written_pages.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>

namespace weft::aici {
namespace {

constexpr std::uintptr_t kPage = 4096;

// Copied from linux/userfaultfd.h and linux/fs.h, because older headers on the build machine may lack them.
struct Api {
  std::uint64_t api, features, ioctls;
};
struct Register {
  std::uint64_t start, length, mode, ioctls;
};
struct Span {
  std::uint64_t start, length;
};
struct Region {
  std::uint64_t start, end, categories;
};
struct Scan {
  std::uint64_t size, flags, start, end, walk_end, regions, num_regions, max_pages;
  std::uint64_t inverted, all_of, any_of, returned;
};
constexpr unsigned long kApi = _IOWR(0xAA, 0x3F, Api), kRegister = _IOWR(0xAA, 0x00, Register),
                        kUnregister = _IOR(0xAA, 0x01, Span), kScan = _IOWR('f', 16, Scan);
constexpr std::uint64_t kVersion = 0xAA, kWriteProtect = 1 << 0, kUnpopulated = 1 << 13, kAsync = 1 << 15;
constexpr std::uint64_t kModeWriteProtect = 1 << 1;
constexpr std::uint64_t kProtectMatching = 1 << 0, kCheckAsync = 1 << 1, kWritten = 1 << 1;
constexpr int kUserModeOnly = 1;

struct Kernel {
  int faults = -1, pagemap = -1;
  const pid_t process = getpid();  // in a forked child the files still refer to the parent's memory, so `scan` fails

  Kernel() {
    faults = static_cast<int>(syscall(SYS_userfaultfd, O_CLOEXEC | O_NONBLOCK | kUserModeOnly));
    if (faults < 0) return;
    Api api{kVersion, kWriteProtect | kUnpopulated | kAsync, 0};
    if (ioctl(faults, kApi, &api) == 0) pagemap = open("/proc/self/pagemap", O_RDONLY | O_CLOEXEC);
    if (pagemap < 0 || !works()) {
      close(faults);
      if (pagemap >= 0) close(pagemap);
      faults = pagemap = -1;
    }
  }

  bool watch(std::uintptr_t begin, std::uintptr_t end) const {
    Register call{begin, end - begin, kModeWriteProtect, 0};
    return faults >= 0 && getpid() == process && ioctl(faults, kRegister, &call) == 0;
  }
  void forget(std::uintptr_t begin, std::uintptr_t end) const {
    Span span{begin, end - begin};
    ioctl(faults, kUnregister, &span);
  }
  // Appends the ranges that were written, and write-protects them again. Returns false on failure.
  bool scan(std::uintptr_t begin, std::uintptr_t end, std::vector<WrittenPages::Range> &ranges) const {
    if (getpid() != process) return false;
    std::array<Region, 64> regions;
    for (std::uintptr_t at = begin; at < end;) {
      Scan call{};
      call.size = sizeof call;
      call.flags = kProtectMatching | kCheckAsync;
      call.start = at;
      call.end = end;
      call.regions = reinterpret_cast<std::uintptr_t>(regions.data());
      call.num_regions = regions.size();
      call.all_of = call.returned = kWritten;
      const int count = ioctl(pagemap, kScan, &call);
      if (count < 0 || call.walk_end <= at) return false;
      for (int i = 0; i < count; ++i) {
        const Region &region = regions[static_cast<std::size_t>(i)];
        ranges.push_back({region.start - begin, region.end - begin});
      }
      at = call.walk_end;
    }
    return true;
  }

 private:
  // Tests both calls on a few pages.
  bool works() const {
    constexpr std::size_t kSize = 8 * kPage;
    void *mapped = mmap(nullptr, kSize, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (mapped == MAP_FAILED) return false;
    auto *bytes = static_cast<volatile char *>(mapped);
    const auto begin = reinterpret_cast<std::uintptr_t>(mapped);
    std::vector<WrittenPages::Range> first, second, third;
    bytes[0] = bytes[3 * kPage] = 1;
    bool answers = watch(begin, begin + kSize) && scan(begin, begin + kSize, first);
    bytes[3 * kPage] = 2;
    bytes[6 * kPage] = 2;
    answers = answers && scan(begin, begin + kSize, second) && scan(begin, begin + kSize, third);
    munmap(mapped, kSize);
    return answers && third.empty() && second.size() == 2 && second[0].begin == 3 * kPage &&
           second[0].end == 4 * kPage && second[1].begin == 6 * kPage && second[1].end == 7 * kPage;
  }
};

// Returns this process's files, which stay open until it exits.
const Kernel &kernel() {
  static const Kernel &kernel = *new Kernel;
  return kernel;
}

}  // namespace

void WrittenPages::watch(const std::uint8_t *memory, std::size_t size) {
  begin_ = end_ = 0;
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  if (size == 0 || begin % kPage != 0 || size % kPage != 0 || !kernel().watch(begin, begin + size)) return;
  begin_ = begin;
  end_ = begin + size;
  std::vector<Range> before_now;
  if (!take(before_now)) stop();
}

void WrittenPages::stop() {
  if (end_ != 0) kernel().forget(begin_, end_);
  begin_ = end_ = 0;
}

bool WrittenPages::take(std::vector<Range> &ranges) { return end_ != 0 && kernel().scan(begin_, end_, ranges); }

}  // namespace weft::aici
