#include "support/amx.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace weft {
namespace {

bool ask() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned kBFloat16 = 1u << 22, kTiles = 1u << 24;  // of leaf 7, in edx
  constexpr unsigned kVectorBFloat16 = 1u << 5;                // of its second part, in eax
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (~d & (kBFloat16 | kTiles)) != 0) return false;
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || (a & kVectorBFloat16) == 0) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

}  // namespace

bool has_amx() {
  static const bool has = ask();
  return has;
}

}  // namespace weft
