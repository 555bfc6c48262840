// What a program made of the request's prompt, and its first step. Python-free.
//
// AICI's programs may put another prompt in place of the request's. The request's has been read by then, so what
// they do to its end is done by other means: text after it is forced, and of tokens that they took away, to let the
// model write them together with what follows, they are told as if they had been sampled.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "aici/turn.h"

namespace weft {

struct WasmPrompt {
  std::vector<std::int32_t> added;  // after the request's
  std::vector<std::int32_t> taken;  // the request's last ones, which the program's lacks
};

// Reads the answer to aici_init_prompt. A program that reads the prompt's text and tokenizes it anew loses the tokens
// without text and may cut it otherwise: that is the same prompt. Throws WasmError for one that is neither the
// request's, nor begins with it, nor is its beginning.
WasmPrompt read_prompt(std::string_view result, const std::vector<std::int32_t> &prompt, const WasmHost &host);

// Shows a program that was created its prompt; where it stands then. On a guest thread. Throws WasmError.
WasmPosition begin(WasmInstance &instance, const std::vector<std::int32_t> &prompt);

}  // namespace weft
