//! Where conversations are, and which prompt continues which.

use parking_lot::{Mutex, RwLock};
use policy::estimate::{Home, Homes};
use policy::fingerprint::Chain;
use policy::ids::{PrefixHash, WorkerId};
use policy::units::Millis;
use policy::ways::Ways;

use super::tails::last_full;

/// Conversations that are remembered.
const CONVERSATIONS: usize = 100_000;
/// Keys that are looked for before others may take the lock: some microseconds.
const AT_ONCE: usize = 128;

/// The conversations used last.
#[derive(Debug)]
pub(super) struct Conversations {
    last_turns: RwLock<LastTurns>,
    /// By what each conversation's next prompt will repeat: the last key of its last prompt, or of that one's reply.
    prompts: Mutex<Ways>,
}

/// Where each conversation's last turn went.
#[derive(Debug)]
struct LastTurns {
    /// By conversation: see [`packed`].
    of: Ways,
    homes: Homes,
}

/// Bits of a worker's slot in a last turn; its time in milliseconds has the rest.
const SLOT_BITS: u32 = 20;

impl Conversations {
    /// None yet. One that is silent for longer and longer counts less and less, with this time constant.
    pub(super) fn new(window: Millis) -> Self {
        Self {
            last_turns: RwLock::new(LastTurns {
                of: Ways::new(CONVERSATIONS),
                homes: Homes::new(window),
            }),
            prompts: Mutex::new(Ways::new(CONVERSATIONS)),
        }
    }

    pub(super) fn last_worker(&self, session: u64) -> Option<WorkerId> {
        self.last_turns
            .read()
            .of
            .get(session)
            .map(|last| unpacked(last).worker)
    }

    /// A turn went to a worker. Returns where the one before went, if elsewhere.
    pub(super) fn moved(&self, now: Millis, session: u64, to: WorkerId) -> Option<WorkerId> {
        let now = Millis(now.0.trunc());
        let mut last_turns = self.last_turns.write();
        let last = last_turns.of.put(session, packed(Home { worker: to, at: now }));
        let last = last.map(unpacked);
        last_turns.homes.placed(now, to, last);
        last.map(|last| last.worker).filter(|&last| last != to)
    }

    /// How many conversations live on each worker, by slot, in a unit that all share.
    pub(super) fn living_into(&self, workers: usize, living: &mut Vec<f64>) {
        let last_turns = self.last_turns.read();
        living.clear();
        living.extend((0..workers as u32).map(|slot| last_turns.homes.of(WorkerId(slot))));
    }

    /// The conversation that this prompt continues, or a new one that it begins; `None` for a prompt without keys.
    pub(super) fn of(&self, chain: &Chain) -> Option<u64> {
        let last = chain.last()?;
        let known = self.prompts.lock().touch(last.0);
        if known.is_some() {
            return known;
        }
        // Of messages a prompt or a reply ends with one, and only a plain prompt goes on within its text. That has thousands
        // of keys if it is long, and whoever begins a conversation has none that is known.
        let mut prompts = None;
        let mut pop = |at: usize, key: PrefixHash| {
            if at.is_multiple_of(AT_ONCE) {
                prompts = None;
            }
            prompts.get_or_insert_with(|| self.prompts.lock()).remove(key.0)
        };
        let continued = if chain.is_text() {
            let keys = chain.hashes().iter().rev().enumerate();
            keys.into_iter().find_map(|(at, &key)| pop(at, key))
        } else {
            let ends = chain.message_ends().rev().enumerate();
            ends.into_iter().find_map(|(at, (key, _))| pop(at, key))
        };
        drop(prompts);
        let mut prompts = self.prompts.lock();
        // The same prompt may have been asked again meanwhile; who found what it continues is right.
        let conversation = continued.or_else(|| prompts.touch(last.0));
        let conversation = conversation.unwrap_or(last.0);
        prompts.put(last.0, conversation);
        Some(conversation)
    }

    /// A prompt was answered. A plain prompt's last key is not repeated by the next one, which goes on within that chunk:
    /// from now on its conversation is known by the last full key of the reply. A shorter reply leaves only keys of the
    /// prompt, which other conversations may begin with too, unless this prompt went on from a reply itself.
    pub(super) fn answered(&self, prompt: &Chain, parent: Option<PrefixHash>, reply: &Chain, goes_on: bool) {
        let Some(last) = prompt.last().filter(|_| goes_on) else {
            return;
        };
        let said = last_full(goes_on, reply).map(|at| reply.hashes()[at]);
        let mut prompts = self.prompts.lock();
        // A conversation has the name of the prompt that began it.
        if let Some(conversation) = prompts.get(last.0)
            && let Some(key) = said.or(parent.filter(|_| conversation != last.0))
        {
            prompts.put(key.0, conversation);
        }
    }

    /// Each conversation's last worker's slot. What is taken up again in this order is forgotten in the same order.
    pub(super) fn last_workers(&self) -> Vec<(u64, u32)> {
        let last_turns = self.last_turns.read();
        let slot = |(session, last)| (session, unpacked(last).worker.0);
        last_turns.of.iter().map(slot).collect()
    }

    pub(super) fn left(&self, worker: WorkerId) {
        let mut last_turns = self.last_turns.write();
        last_turns.of.retain(|_, last| unpacked(last).worker != worker);
        last_turns.homes.left(worker);
    }

    /// Each conversation by its last prompt, in such an order.
    pub(super) fn prompts(&self) -> Vec<(u64, u64)> {
        self.prompts.lock().iter().collect()
    }

    /// Takes up a last worker, unless a newer one is known: as if its turn had been when the router started.
    pub(super) fn restore_worker(&self, session: u64, worker: WorkerId) {
        let mut last_turns = self.last_turns.write();
        if !last_turns.of.contains(session) {
            let at = Millis::ZERO;
            last_turns.of.put(session, packed(Home { worker, at }));
            last_turns.homes.placed(at, worker, None);
        }
    }

    /// Takes up a last prompt, unless it is known already.
    pub(super) fn restore_prompt(&self, key: PrefixHash, session: u64) {
        let mut prompts = self.prompts.lock();
        if !prompts.contains(key.0) {
            prompts.put(key.0, session);
        }
    }
}

/// A last turn as one number.
fn packed(home: Home) -> u64 {
    (home.at.0.max(0.0) as u64) << SLOT_BITS | u64::from(home.worker.0)
}

/// And back.
fn unpacked(last: u64) -> Home {
    Home {
        worker: WorkerId((last & ((1 << SLOT_BITS) - 1)) as u32),
        at: Millis((last >> SLOT_BITS) as f64),
    }
}

#[cfg(test)]
mod tests {
    use policy::fingerprint::ChainBuilder;

    use super::*;

    const WINDOW: Millis = Millis(60_000.0);

    /// A plain prompt is asked and answered; the conversation that it belongs to.
    fn turn(known: &Conversations, text: &mut Vec<u8>, said: &[u8]) -> u64 {
        let mut builder = ChainBuilder::new("m", None);
        builder.begin_prompt();
        builder.push(text);
        let mut reply = builder.reply();
        builder.end_message();
        let prompt = builder.into_chain();
        let conversation = known.of(&prompt).unwrap();
        reply.push(said);
        reply.end_message();
        known.answered(&prompt, reply.parent(), reply.chain(), reply.goes_on());
        text.extend(said);
        conversation
    }

    #[test]
    fn a_text_that_grows_is_one_conversation_whatever_its_replies_lengths() {
        for first in [100, 254, 510, 700] {
            let known = Conversations::new(WINDOW);
            let mut text = vec![b'q'; first];
            let begun = turn(&known, &mut text, &[b'r'; 300]);
            for (turns, length) in [10, 290, 3, 40, 500].into_iter().enumerate() {
                text.extend([b'a' + turns as u8; 200]);
                let said = vec![b'r'; length];
                assert_eq!(
                    turn(&known, &mut text, &said),
                    begun,
                    "{first} bytes, turn {turns}"
                );
            }
        }
    }

    #[test]
    fn a_text_whose_replies_end_with_their_chunks_is_one_conversation() {
        let known = Conversations::new(WINDOW);
        let mut text = vec![b'q'; 254];
        let begun = turn(&known, &mut text, &[b'r'; 256]);
        for turns in 0..4 {
            text.extend([b'a' + turns; 256]);
            assert_eq!(turn(&known, &mut text, &[b'r'; 512]), begun, "turn {turns}");
        }
    }

    #[test]
    fn a_chat_is_one_conversation_from_its_first_message_on() {
        let known = Conversations::new(WINDOW);
        let chat = |messages: &[&str]| {
            let mut builder = ChainBuilder::new("m", None);
            for text in messages {
                builder.begin_message("user");
                builder.push(text.as_bytes());
                builder.end_message();
            }
            builder.into_chain()
        };
        let long = "x".repeat(70_000);
        let begun = known.of(&chat(&["hi"])).unwrap();
        let mut messages = vec!["hi"];
        for added in [1, 2, AT_ONCE, 3] {
            messages.push(&long);
            messages.extend(vec!["go on"; added]);
            assert_eq!(known.of(&chat(&messages)), Some(begun), "{added}");
        }
        assert_ne!(
            known.of(&chat(&["hi", "there"])),
            Some(begun),
            "it went on otherwise"
        );
    }

    #[test]
    fn a_conversation_is_found_however_much_a_turn_adds() {
        let known = Conversations::new(WINDOW);
        let mut text = vec![b'q'; 700];
        let begun = turn(&known, &mut text, &[b'r'; 300]);
        for keys in [AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 5 * AT_ONCE] {
            text.extend(vec![b'a'; keys * 256]);
            assert_eq!(turn(&known, &mut text, &[b'r'; 300]), begun, "{keys}");
        }
    }

    #[test]
    fn a_long_prompt_lets_others_in_while_its_keys_are_looked_for() {
        let known = Conversations::new(WINDOW);
        let long = {
            let mut builder = ChainBuilder::new("m", None);
            builder.begin_prompt();
            builder.push(&vec![b'q'; 1 << 20]);
            builder.end_message();
            builder.into_chain()
        };
        // Many ask the same at once: whoever comes between two steps of another must not begin a second conversation.
        let asked = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(|| known.of(&long))).collect();
            let asked: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
            asked
        });
        assert!(
            asked
                .iter()
                .all(|&conversation| conversation == Some(long.last().unwrap().0))
        );
        assert_eq!(known.prompts().len(), 1);
    }

    #[test]
    fn plain_prompts_that_begin_alike_are_conversations_of_their_own() {
        let known = Conversations::new(WINDOW);
        let mut seen = Vec::new();
        for end in 0..3 {
            let mut text = vec![b'q'; 700];
            text.push(b'a' + end);
            seen.push(turn(&known, &mut text, &[b'r'; 20]));
            seen.push(turn(&known, &mut vec![b'q', b'a' + end], &[b'r'; 400]));
        }
        let distinct: std::collections::BTreeSet<u64> = seen.iter().copied().collect();
        assert_eq!(distinct.len(), seen.len());
    }
}
