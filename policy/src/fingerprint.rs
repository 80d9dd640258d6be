//! A prompt as a chain of 64-bit hashes, each of which names the whole prefix that ends with it.
//!
//! The router must recognise a shared prefix without rendering a chat template and without a tokenizer. So it cuts a
//! *canonical form* of the prompt into pieces and hashes them into a chain (`docs/fingerprints.md`):
//!
//! ```text
//! link₀ = H(domain, model, cache salt)        linkᵢ = fold(linkᵢ₋₁, H(pieceᵢ))
//! ```
//!
//! Two prompts share their first n links exactly when they share model, salt and their first n pieces, up to a
//! collision of 64 bits: with 10⁸ keys known, one in 10¹¹ lookups of an unknown key. Some of the links are keys, by
//! which the index compares prefixes. H is rapidhash v3, whose output is fixed by its authors; `fold` is one
//! multiplication to 128 bits whose halves are added to its factors without carry.
//!
//! # Text keys
//! [`ChainBuilder`] cuts each message into chunks of [`CHUNK_BYTES`]. Chunks restart at each message, so a
//! conversation's next turn extends the chain of the last turn instead of shifting it. Clients name the model after the
//! messages, so the parser fills [`Pieces`], which become a chain at the end of the request.
//!
//! A message ends with a key. Within a message a key spans as many chunks as make at most an eighth of the prompt
//! before it (one to 32): each key costs entries in a mirror, in the index and in the learned token offsets, and a
//! finer one would add less precision than the token estimate has. In a plain prompt every chunk is a key.
//!
//! ## The canonical form
//! A message is its role, then its fields in the order of the request, but reasoning before all others and calls after
//! them. Each field is opened by a two-byte mark (`0xFF`, which UTF-8 never contains, and the field's [`Field`] code).
//! Text is in its shortest JSON spelling ([`spell`]), to be hashed in place. `docs/fingerprints.md` tests each rule:
//!
//! | in the request | canonical form | so |
//! |---|---|---|
//! | `"content": "hi"` | `Text("hi")` | the same as `"content": [{"type":"text","text":"hi"}]` |
//! | two text parts `"a"`, `"b"` | `Text("a") Text("b")` | differs from one part `"ab"`: templates may join parts with more than nothing |
//! | `{"type":"image_url","image_url":{"url":U}}` | `Image(digest(U))` | [`MediaDigest`] of the URL or data URL |
//! | other media (audio, video, files), an image without a URL | `Media(digest(part))` | of the whole part: it may be named by an id |
//! | `"name": "bob"` | `Name("bob")` | |
//! | tool call | `ToolArguments(arguments) ToolName(name) ToolId(id)` | arguments are a string in the API: its text; JSON where a client sends it as such |
//! | `"tool_call_id"` of a tool's answer | `ToolId(id)` | |
//! | `"tools"` of the request | a message of role `tools` before all others, one `Tools` field per tool | JSON without insignificant white space, strings in their shortest spelling, keys in the order given |
//! | `"reasoning"`, `"reasoning_content"` | `Reasoning(text)`, before all other fields | only a client that sends it back repeats the whole reply; of two, the first that says anything counts |
//!
//! ```
//! use policy::fingerprint::{ChainBuilder, Field};
//!
//! let mut request = ChainBuilder::new("llama", None);
//! request.begin_message("user");
//! request.field(Field::Text);
//! request.push_text("What is a ");
//! request.push_text("radix tree?"); // any split gives the same chain
//! request.end_message();
//!
//! // The response is hashed as it streams past …
//! let mut reply = request.reply();
//! reply.field(Field::Text);
//! reply.push_text("A trie whose only children were merged.");
//! reply.end_message();
//!
//! // … so the next turn, which repeats it, is known already.
//! let mut next = ChainBuilder::new("llama", None);
//! for (role, text) in [("user", "What is a radix tree?"), ("assistant", "A trie whose only children were merged.")] {
//!     next.begin_message(role);
//!     next.field(Field::Text);
//!     next.push_text(text);
//!     next.end_message();
//! }
//! assert_eq!(next.chain().hashes()[..1], *request.chain().hashes());
//! assert_eq!(next.chain().hashes()[1..], *reply.chain().hashes());
//! ```
//!
//! # Token keys
//! Where a tokenizer is configured or events carry token ids, [`push_token_blocks`] makes one key per full engine
//! block. Text keys and token keys of the same model never meet: their roots differ by domain.
//!
//! # Rejected
//! - *A key per chunk at any depth*: 4,100 keys for a megabyte, which took more time than hashing its bytes.
//! - *One hash per message*: a 50-page first message would be all or nothing.
//! - *Chunks over the whole prompt*: the response enters the next prompt re-rendered, which would shift all later keys.
//! - *Decoded text*: each escape interrupts the run of bytes; the shortest spelling, which clients send, needs no copy.
//! - *Seeding each piece's hash with the link before*: pieces hashed independently overlap in the processor.
//! - *XXH3*: on pieces of 256 bytes it spends half its time on setting up and merging accumulators.

mod chain;
mod keys;
mod media;
mod spelling;
mod text;
mod token;

#[cfg(test)]
mod tests;

pub use chain::Chain;
pub use keys::{CHUNK_BYTES, Digests, Links, Sink};
pub use media::{MediaDigest, MediaHasher, MediaPart, Medium};
pub use spelling::{spell, spelled};
pub use text::{ChainBuilder, Chunker, Field, Mark, Pieces};
pub use token::{push_token_blocks, token_root};
