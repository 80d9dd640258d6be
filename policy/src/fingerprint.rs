//! A prompt as a chain of 64-bit hashes, each of which names the whole prefix that ends with it.
//!
//! An engine's prefix cache can serve a request up to the first byte in which the rendered prompt differs from one it
//! has seen. The router must recognise that shared prefix without rendering a chat template and without a tokenizer. So
//! it cuts a *canonical form* of the prompt into pieces and hashes them into a chain,
//!
//! ```text
//! link₀ = H(domain, model, cache salt)        linkᵢ = fold(linkᵢ₋₁, H(pieceᵢ))
//! ```
//!
//! and two prompts share their first n links exactly when they share model, salt and their first n pieces (up to a
//! collision of 64 bits: with 10⁸ keys known, one in 10¹¹ lookups of an unknown key). Some of the links are keys. A key
//! names everything before it, so the index can compare two prefixes by their last key alone. H is rapidhash v3, whose
//! output is fixed by its authors; `fold` is one multiplication to 128 bits whose halves are added to its factors
//! without carry.
//!
//! # Text keys
//!
//! [`ChainBuilder`] cuts each message into chunks of [`CHUNK_BYTES`]. Chunks restart at each message, so the last chunk
//! of a message may be short, and a conversation's next turn, which appends messages, extends the chain of the last
//! turn instead of shifting it. Clients name the model after the messages, so the parser fills [`Pieces`], which become
//! a chain at the end of the request. For a response, and where the model is known, a [`ChainBuilder`] is used.
//!
//! A message ends with a key. Within a message a key spans as many chunks as make at most an eighth of the prompt
//! before it (one to 32 of them). Each key costs an entry in a worker's mirror, in the index and in the learned token
//! offsets, for each request not seen before; in a long prompt, a finer key would add less precision than the token
//! estimate has. Where two prompts diverge between messages nothing is lost. In a plain prompt every chunk is a key.
//!
//! ## The canonical form
//!
//! A message is its role, then its fields in the order of the request, but reasoning before all others and calls after
//! them. Each field is opened by a two-byte mark (`0xFF` and the field's [`Field`] code; UTF-8 never contains `0xFF`,
//! so no text can imitate a mark). Text is in its shortest JSON spelling ([`spell`]), so that a request's bytes can be
//! hashed in place. The caller follows these rules, which `docs/fingerprints.md` explains by examples:
//!
//! | in the request | canonical form | so |
//! |---|---|---|
//! | `"content": "hi"` | `Text("hi")` | the same as `"content": [{"type":"text","text":"hi"}]` |
//! | `"content": "h\u0069"` | `Text("hi")` | how a string is escaped does not matter, nor white space between tokens |
//! | `"content": null`, `""`, absent | nothing | an assistant message with tool calls matches however it is echoed |
//! | `{"type":"refusal","refusal":"no"}` | `Text("no")` | engines render it as text |
//! | two text parts `"a"`, `"b"` | `Text("a") Text("b")` | differs from one part `"ab"`: templates may join parts with more than nothing |
//! | `{"type":"image_url","image_url":{"url":U}}` | `Image(digest(U))` | [`MediaDigest`] of the URL or data URL |
//! | other media (audio, video, files), an image without a URL | `Media(digest(part))` | of the whole part: it may be named by an id |
//! | media with a `uuid` | `Image` or `Media`, digest of kind and uuid | vLLM takes it for the medium's name and does not look at the rest |
//! | `"name": "bob"` | `Name("bob")` | |
//! | tool call | `ToolArguments(arguments) ToolName(name) ToolId(id)` | arguments are a string in the API: its text; JSON where a client sends it as such |
//! | `"function_call"` | `ToolArguments(arguments) ToolName(name)` | the older form of a call |
//! | `"tool_call_id"` of a tool's answer | `ToolId(id)` | |
//! | `"tools"` of the request | a message of role `tools` before all others, one `Tools` field per tool | JSON without insignificant white space, strings in their shortest spelling, keys in the order given |
//! | role `system`, role `developer` | role as written | they are different prompts: some templates render them differently |
//! | fields the template never sees (`temperature`, `user`, `metadata`, …) | nothing | |
//! | `"reasoning"`, `"reasoning_content"` | `Reasoning(text)`, before all other fields | only a client that sends it back repeats the whole reply; of two, the first that says anything counts |
//! | content before or after `tool_calls` | the calls last | templates take them by name; a reply's text may go on after a call has begun |
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
//!
//! Where a tokenizer is configured or events carry token ids, [`push_token_blocks`] makes one key per full engine
//! block. Text keys and token keys of the same model never meet: their roots differ by domain. Blocks of sixteen
//! tokens, the size of most engines, use a specialised hash instead of H, which needs half the instructions.
//!
//! # Rejected
//!
//! - *A key per chunk at any depth*: 4,100 keys for a megabyte, which took more time than hashing its bytes.
//! - *One hash per message*: a 50-page first message would be all or nothing.
//! - *Chunks over the whole prompt*: the response enters the next prompt re-rendered. Restarting at each message keeps
//!   every other message's keys in place, and lets the response be hashed before the next turn exists.
//! - *Decoded text*: each escape interrupts the run of bytes, and code has one in each line, JSON in tool calls one in
//!   every ten bytes. Clients already send the shortest spelling, so it needs no copy.
//! - *Seeding each piece's hash with the link before*: each piece would wait for the previous one to be complete.
//!   Hashed independently, pieces overlap in the processor, and only the fold is sequential.
//! - *XXH3*: sound, but on pieces of 256 bytes it spends half its time on setting up and merging accumulators.

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
pub use media::{MediaDigest, MediaHasher};
pub use spelling::{spell, spelled};
pub use text::{ChainBuilder, Chunker, Field, Mark, Pieces};
pub use token::{push_token_blocks, token_root};
