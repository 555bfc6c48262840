// Which vector instructions kernels use that exist once for each set.
#pragma once

namespace weft {

enum class InstructionSet { kPlain, kAvx2, kAvx512 };

// The best that the processor has, or what WEFT_INSTRUCTION_SET (plain, avx2, avx512) says if that is less: so what
// other processors compute can be tried and timed on this one. Asked once. Throws std::invalid_argument for another
// name.
InstructionSet instruction_set();

// Its name, as in WEFT_INSTRUCTION_SET.
const char *instruction_set_name();

}  // namespace weft
