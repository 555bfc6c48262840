// XGrammar's matchers, called without Python through the C interface of TVM FFI that its wheel is built on.
#pragma once

#include <weft/matcher.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "matcher/forced_text.h"

namespace weft {

// Resolves the interface from the installed libraries (absolute paths). Returns "" if all that weft calls is there,
// else what is missing. Safe to call again; the first success stays.
std::string xgrammar_bind(const char *tvm_ffi_path, const char *xgrammar_path);

// A matcher over `handle`, an xgrammar GrammarMatcher object; takes a reference of its own. `vocab_size` is the number
// of bits of a mask row, `end_tokens` what the matcher takes as an end. `texts` spells forced text; without it
// none is found. Throws std::logic_error before a successful xgrammar_bind.
weft_matcher xgrammar_matcher(void *handle, int vocab_size, std::vector<std::int32_t> end_tokens,
                              std::shared_ptr<const TokenTexts> texts = nullptr);

}  // namespace weft
