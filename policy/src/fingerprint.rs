//! A prompt as a chain of 64-bit hashes, each of which names the whole prefix that ends with it.
//!
//! An engine's prefix cache can serve a request up to the first byte in which the rendered prompt differs from one it
//! has seen. The router must recognise that shared prefix without rendering a chat template and without a tokenizer.
//! So it cuts a *canonical form* of the prompt into pieces and hashes them into a chain,
//!
//! ```text
//! link₀ = H(domain, model, cache salt)        linkᵢ = H(linkᵢ₋₁, H(pieceᵢ))        H = XXH3, 64 bits
//! ```
//!
//! and two prompts share their first n keys exactly when they share model, salt and their first n pieces (up to a
//! collision of XXH3: with 10⁸ keys known, one in 10¹¹ lookups of an unknown key). Because a key names everything before
//! it, the index may compare two prefixes by their last key alone.
//!
//! # Text keys
//!
//! [`ChainBuilder`] cuts each message into chunks of [`CHUNK_BYTES`]. Chunks restart at each message, so that the last
//! chunk of a message may be short and a conversation's next turn, which appends messages, extends the chain of the
//! last turn instead of shifting it. The parser feeds decoded bytes; how JSON was written never reaches the hash.
//!
//! ## The canonical form
//!
//! A message is its role, then its fields in the order of the request, each opened by a two-byte mark (`0xFF` and the
//! field's [`Field`] code; UTF-8 never holds `0xFF`, so no text can imitate a mark). The caller holds to these rules:
//!
//! | in the request | canonical form | so |
//! |---|---|---|
//! | `"content": "hi"` | `Text("hi")` | the same as `"content": [{"type":"text","text":"hi"}]` |
//! | `"content": "h\u0069"` | `Text("hi")` | escapes, whitespace and number of bytes in the JSON do not matter |
//! | `"content": null`, `""`, absent | nothing | an assistant message with tool calls matches however it is echoed |
//! | two text parts `"a"`, `"b"` | `Text("a") Text("b")` | differs from one part `"ab"`: templates may join parts with more than nothing |
//! | `{"type":"image_url","image_url":{"url":U}}` | `Image(digest(U))` | [`MediaDigest`] of the URL or data URL as decoded |
//! | other media (audio, video, files) | `Media(digest(…))` | the same |
//! | `"name": "bob"` | `Name("bob")` | |
//! | tool call | `ToolId(id) ToolName(name) ToolArguments(arguments)` | arguments are a string in the API: its decoded bytes |
//! | `"tool_call_id"` of a tool's answer | `ToolId(id)` | |
//! | `"tools"` of the request | a message of role `tools` before all others, one `Tools` field per tool | JSON without insignificant whitespace, strings decoded, keys in the order given |
//! | role `system`, role `developer` | role as written | they are different prompts: some templates render them differently |
//! | fields the template never sees (`temperature`, `user`, `metadata`, …) | nothing | |
//! | reasoning text of an assistant | nothing | templates drop the reasoning of earlier turns, and so do clients |
//!
//! ```
//! use policy::fingerprint::{ChainBuilder, Field};
//!
//! let mut request = ChainBuilder::new("llama", None);
//! request.begin_message("user");
//! request.field(Field::Text);
//! request.push(b"What is a ");
//! request.push(b"radix tree?"); // any split gives the same chain
//! request.end_message();
//!
//! // The answer is hashed as it streams past …
//! let mut reply = request.reply();
//! reply.field(Field::Text);
//! reply.push(b"A trie whose only children were merged.");
//! reply.end_message();
//!
//! // … so the next turn, which repeats it, is known already.
//! let mut next = ChainBuilder::new("llama", None);
//! for (role, text) in [("user", "What is a radix tree?"), ("assistant", "A trie whose only children were merged.")] {
//!     next.begin_message(role);
//!     next.field(Field::Text);
//!     next.push(text.as_bytes());
//!     next.end_message();
//! }
//! assert_eq!(next.chain().hashes()[..1], *request.chain().hashes());
//! assert_eq!(next.chain().hashes()[1..], *reply.chain().hashes());
//! ```
//!
//! # Token keys
//!
//! Where a tokenizer is configured or events carry token ids, [`push_token_blocks`] makes one key per full engine block.
//! Text keys and token keys of the same model never meet: their roots differ by domain.
//!
//! # Rejected
//!
//! - *One hash per message*: a 50-page first message would be all or nothing.
//! - *Chunks over the whole prompt*: the assistant's reply enters the next prompt re-rendered; restarting at each
//!   message keeps every other message's keys in place, and lets the reply be hashed before the next turn exists.
//! - *Seeding XXH3 with the previous link*: past 240 bytes the seed costs a derived 192-byte secret per chunk, and each
//!   chunk would wait for the one before. Hashing the piece first and folding it into the link after leaves only 8 bytes
//!   in the dependent chain.

mod chain;
mod text;
mod token;

#[cfg(test)]
mod tests;

pub use chain::Chain;
pub use text::{CHUNK_BYTES, ChainBuilder, Field, MediaDigest, MediaHasher};
pub use token::{push_token_blocks, token_root};
