// Advanced Matrix Extensions of x86: its tiles multiply bfloat16.
#pragma once

namespace weft {

// Whether the processor has them and the system lets the process use them; asked once, which lets it.
bool has_amx();

}  // namespace weft
