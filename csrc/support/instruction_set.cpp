#include "support/instruction_set.h"

#include <algorithm>
#include <cstdlib>
#include <iterator>
#include <stdexcept>
#include <string>

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace weft {
namespace {

constexpr const char *kNames[] = {"plain", "avx2", "avx512"};

InstructionSet of_processor() {
#if defined(__x86_64__)
  const bool has_avx2 =
      __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
  if (has_avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq"))
    return InstructionSet::kAvx512;
  if (has_avx2) return InstructionSet::kAvx2;
#endif
  return InstructionSet::kPlain;
}

InstructionSet choose() {
  const InstructionSet best = of_processor();
  const char *wanted = std::getenv("WEFT_INSTRUCTION_SET");
  if (!wanted || !*wanted) return best;
  const auto *name = std::find_if(std::begin(kNames), std::end(kNames),
                                  [wanted](const char *known) { return std::string(known) == wanted; });
  if (name == std::end(kNames))
    throw std::invalid_argument("WEFT_INSTRUCTION_SET is '" + std::string(wanted) +
                                "'; it can be plain, avx2 or avx512, or not set");
  return std::min(best, static_cast<InstructionSet>(name - std::begin(kNames)));
}

bool ask_for_amx() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned kBFloat16 = 1u << 22, kTiles = 1u << 24;  // of leaf 7, in edx
  constexpr unsigned kVectorBFloat16 = 1u << 5;                // of its subleaf 1, in eax
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (~d & (kBFloat16 | kTiles)) != 0) return false;
  if (!__get_cpuid_count(7, 1, &a, &b, &c, &d) || (a & kVectorBFloat16) == 0) return false;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
#else
  return false;
#endif
}

bool ask_for_fast_pairs() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned kAmd = 0x68747541;          // "Auth", in ebx of leaf 0
  constexpr unsigned kVectorBFloat16 = 1u << 5;  // of leaf 7, subleaf 1, in eax
  unsigned a = 0, b = 0, c = 0, d = 0;
  if (!__get_cpuid(0, &a, &b, &c, &d) || b != kAmd) return false;
  return __get_cpuid_count(7, 1, &a, &b, &c, &d) && (a & kVectorBFloat16) != 0;
#else
  return false;
#endif
}

}  // namespace

InstructionSet instruction_set() {
  static const InstructionSet chosen = choose();
  return chosen;
}

const char *instruction_set_name() { return kNames[static_cast<int>(instruction_set())]; }

bool has_vnni() {
#if defined(__x86_64__)
  return instruction_set() == InstructionSet::kAvx512 && __builtin_cpu_supports("avx512vnni");
#else
  return false;
#endif
}

bool has_amx() {
  static const bool has = ask_for_amx();
  return has;
}

bool has_amx_int8() {
#if defined(__x86_64__) && defined(__linux__)
  constexpr unsigned kInt8 = 1u << 25;  // of leaf 7, in edx
  unsigned a = 0, b = 0, c = 0, d = 0;
  return has_amx() && __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & kInt8) != 0;
#else
  return false;
#endif
}

bool has_fast_pairs() {
  static const bool has = ask_for_fast_pairs();
  return has;
}

}  // namespace weft
