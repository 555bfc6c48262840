// XGrammar's matchers, called without Python through the C interface of TVM FFI that its wheel is built on.
#pragma once

#include <weft/matcher.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "matcher/forced_text.h"

namespace weft {

// Resolves the interface from the installed libraries (absolute paths). Returns "" on success, else what is missing.
// May be called again; after the first success it does nothing.
std::string xgrammar_bind(const char *tvm_ffi_path, const char *xgrammar_path);

// Makes a matcher over `handle`, an xgrammar GrammarMatcher object, and takes a reference to it. `vocab_size` is the
// number of bits of a mask row, `end_tokens` the tokens that end an answer. `texts` tokenizes forced text; if it is
// null, `forced` finds none. Throws std::logic_error before a successful xgrammar_bind.
weft_matcher xgrammar_matcher(void *handle, int vocab_size, std::vector<std::int32_t> end_tokens,
                              std::shared_ptr<const TokenTexts> texts = nullptr);

}  // namespace weft
