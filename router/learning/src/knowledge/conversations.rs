//! Where conversations are served, and which prompt continues which.

use parking_lot::{Mutex, RwLock};
use policy::estimate::{ConversationCounts, LastTurn};
use policy::fingerprint::Chain;
use policy::ids::{PrefixHash, WorkerId};
use policy::set_associative::SetAssociativeMap;
use policy::units::Millis;

use super::plain_prompt_ends::last_full;

const CONVERSATIONS: usize = 100_000;
/// Number of keys looked up per acquisition of the lock, which takes some microseconds.
const AT_ONCE: usize = 128;

#[derive(Debug)]
pub(super) struct ConversationIndex {
    last_turns: RwLock<LastTurns>,
    /// Conversation by the key that its next prompt repeats: the last key of its last prompt, or of the reply.
    prompts: Mutex<SetAssociativeMap>,
}

#[derive(Debug)]
struct LastTurns {
    /// Last turn by conversation: see [`packed`].
    of: SetAssociativeMap,
    homes: ConversationCounts,
}

/// Number of bits of the worker's slot in a packed last turn; the rest is its time in milliseconds.
const SLOT_BITS: u32 = 20;

impl ConversationIndex {
    /// Creates an empty table. A silent conversation's weight decays with the time constant `window`.
    pub(super) fn new(window: Millis) -> Self {
        Self {
            last_turns: RwLock::new(LastTurns {
                of: SetAssociativeMap::new(CONVERSATIONS),
                homes: ConversationCounts::new(window),
            }),
            prompts: Mutex::new(SetAssociativeMap::new(CONVERSATIONS)),
        }
    }

    pub(super) fn last_worker(&self, session: u64) -> Option<WorkerId> {
        self.last_turns
            .read()
            .of
            .get(session)
            .map(|last| unpacked(last).worker)
    }

    /// Records the worker of a turn. Returns the previous turn's worker, if it was another one.
    pub(super) fn moved(&self, now: Millis, session: u64, to: WorkerId) -> Option<WorkerId> {
        let now = Millis(now.0.trunc());
        let mut last_turns = self.last_turns.write();
        let last = last_turns
            .of
            .put(session, packed(LastTurn { worker: to, at: now }));
        let last = last.map(unpacked);
        last_turns.homes.placed(now, to, last);
        last.map(|last| last.worker).filter(|&last| last != to)
    }

    /// Writes the weighted count of conversations on each worker, by slot; all counts share one unit.
    pub(super) fn living_into(&self, workers: usize, living: &mut Vec<f64>) {
        let last_turns = self.last_turns.read();
        living.clear();
        living.extend((0..workers as u32).map(|slot| last_turns.homes.of(WorkerId(slot))));
    }

    /// Returns the conversation that this prompt continues, or a new one; `None` for a prompt without keys.
    pub(super) fn of(&self, chain: &Chain) -> Option<u64> {
        let last = chain.last()?;
        let known = self.prompts.lock().touch(last.0);
        if known.is_some() {
            return known;
        }
        // Chat prompts and replies end with a key of their own; only a plain prompt continues within its text. A long
        // one has thousands of keys, and none is known when it begins a conversation.
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
        // Another thread may have recorded the same prompt meanwhile; a continuation found here takes precedence.
        let conversation = continued.or_else(|| prompts.touch(last.0));
        let conversation = conversation.unwrap_or(last.0);
        prompts.put(last.0, conversation);
        Some(conversation)
    }

    /// Records the reply to a prompt. The next plain prompt does not repeat this one's last key, since it continues
    /// within that chunk; its conversation is found by the last full key of the reply. A shorter reply leaves only keys
    /// of the prompt, which other conversations may share, unless this prompt continued a reply itself.
    pub(super) fn answered(&self, prompt: &Chain, parent: Option<PrefixHash>, reply: &Chain, goes_on: bool) {
        let Some(last) = prompt.last().filter(|_| goes_on) else {
            return;
        };
        let said = last_full(goes_on, reply).map(|at| reply.hashes()[at]);
        let mut prompts = self.prompts.lock();
        // A conversation is named after the prompt that began it.
        if let Some(conversation) = prompts.get(last.0)
            && let Some(key) = said.or(parent.filter(|_| conversation != last.0))
        {
            prompts.put(key.0, conversation);
        }
    }

    /// Returns each conversation's last worker slot, the least recently used first, as they are to be restored.
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

    /// Returns the conversations by the keys that their next prompts repeat, the least recently used first.
    pub(super) fn prompts(&self) -> Vec<(u64, u64)> {
        self.prompts.lock().iter().collect()
    }

    /// Restores a last worker, as of the router's start, unless a newer one is known.
    pub(super) fn restore_worker(&self, session: u64, worker: WorkerId) {
        let mut last_turns = self.last_turns.write();
        if !last_turns.of.contains(session) {
            let at = Millis::ZERO;
            last_turns.of.put(session, packed(LastTurn { worker, at }));
            last_turns.homes.placed(at, worker, None);
        }
    }

    /// Restores a last prompt, unless it is already known.
    pub(super) fn restore_prompt(&self, key: PrefixHash, session: u64) {
        let mut prompts = self.prompts.lock();
        if !prompts.contains(key.0) {
            prompts.put(key.0, session);
        }
    }
}

fn packed(home: LastTurn) -> u64 {
    (home.at.0.max(0.0) as u64) << SLOT_BITS | u64::from(home.worker.0)
}

fn unpacked(last: u64) -> LastTurn {
    LastTurn {
        worker: WorkerId((last & ((1 << SLOT_BITS) - 1)) as u32),
        at: Millis((last >> SLOT_BITS) as f64),
    }
}

#[cfg(test)]
mod tests {
    use policy::fingerprint::ChainBuilder;

    use super::*;

    const WINDOW: Millis = Millis(60_000.0);

    /// Records a plain prompt and its reply. Returns its conversation.
    fn turn(known: &ConversationIndex, text: &mut Vec<u8>, said: &[u8]) -> u64 {
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
            let known = ConversationIndex::new(WINDOW);
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
        let known = ConversationIndex::new(WINDOW);
        let mut text = vec![b'q'; 254];
        let begun = turn(&known, &mut text, &[b'r'; 256]);
        for turns in 0..4 {
            text.extend([b'a' + turns; 256]);
            assert_eq!(turn(&known, &mut text, &[b'r'; 512]), begun, "turn {turns}");
        }
    }

    #[test]
    fn a_chat_is_one_conversation_from_its_first_message_on() {
        let known = ConversationIndex::new(WINDOW);
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
        let known = ConversationIndex::new(WINDOW);
        let mut text = vec![b'q'; 700];
        let begun = turn(&known, &mut text, &[b'r'; 300]);
        for keys in [AT_ONCE - 1, AT_ONCE, AT_ONCE + 1, 5 * AT_ONCE] {
            text.extend(vec![b'a'; keys * 256]);
            assert_eq!(turn(&known, &mut text, &[b'r'; 300]), begun, "{keys}");
        }
    }

    #[test]
    fn a_long_prompt_lets_others_in_while_its_keys_are_looked_for() {
        let known = ConversationIndex::new(WINDOW);
        let long = {
            let mut builder = ChainBuilder::new("m", None);
            builder.begin_prompt();
            builder.push(&vec![b'q'; 1 << 20]);
            builder.end_message();
            builder.into_chain()
        };
        // Several threads ask for the same prompt at once: none may begin a second conversation.
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
        let known = ConversationIndex::new(WINDOW);
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
