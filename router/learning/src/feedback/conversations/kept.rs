//! Conversations that an earlier process observed.

use policy::estimate::Class;
use policy::units::{Millis, Tokens};

use super::{CONVERSATIONS, Conversation, Conversations, instant};

/// A conversation in the form that outlives a process.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct KeptConversation {
    pub key: u64,
    /// Number of completed turns.
    pub turns: u32,
    /// Tokens after the last turn.
    pub length: Tokens,
    /// Class of the last turn, without its API key.
    pub class: Class,
    /// Time since the last turn arrived.
    pub heard: Millis,
    /// Time since the last response was complete.
    pub ended: Millis,
    /// Whether the conversation's silence was already counted as its end.
    pub is_over: bool,
}

impl Conversations {
    /// Returns all conversations in the form that another process can restore, the least recently used first.
    #[must_use]
    pub fn kept(&self, now: Millis) -> Vec<KeptConversation> {
        let kept = |(&key, talk): (&u64, &Conversation)| KeptConversation {
            key,
            turns: talk.turns,
            length: talk.length,
            class: Class {
                key: None,
                ..talk.class
            },
            heard: now.saturating_sub(talk.heard),
            ended: now.saturating_sub(talk.ended),
            is_over: talk.due.is_none(),
        };
        self.talks.iter().rev().map(kept).collect()
    }

    /// Restores conversations that were written `age` ago, except those that are known already. Returns their number.
    pub fn restore(&mut self, now: Millis, age: Millis, kept: &[KeptConversation]) -> usize {
        let room = CONVERSATIONS.get().saturating_sub(self.talks.len());
        let mut restored = 0;
        for talk in kept.iter().skip(kept.len().saturating_sub(room)) {
            if self.talks.contains(&talk.key) {
                continue;
            }
            let ended = now - age - talk.ended;
            let due = ended + self.habits.of(talk.class).patience();
            self.remember(
                talk.key,
                Conversation {
                    turns: talk.turns,
                    length: talk.length,
                    class: talk.class,
                    heard: now - age - talk.heard,
                    ended,
                    due: (!talk.is_over).then(|| instant(due)),
                },
            );
            restored += 1;
        }
        restored
    }
}

#[cfg(test)]
mod tests {
    use policy::estimate::{Finish, Stage};

    use super::super::CompletedTurn;
    use super::*;

    fn turn(of: &mut Conversations, key: u64, at: f64, prompt: u64) -> u32 {
        let expected = of.arrived(Millis(at), Some(key), Some(99), false);
        of.turned(&CompletedTurn {
            key,
            class: expected.class,
            finish: Finish::Stop,
            arrived: Millis(at),
            ended: Millis(at + 100.0),
            prompt: Tokens(prompt),
            response: Tokens(50),
            last: false,
        });
        expected.turn
    }

    #[test]
    fn the_next_turn_after_a_restart_continues_its_conversation() {
        let mut before = Conversations::new(Tokens(200));
        turn(&mut before, 7, 0.0, 1_000);
        turn(&mut before, 7, 5_000.0, 1_300);
        let kept = before.kept(Millis(10_000.0));
        assert_eq!(kept[0].class.key, None, "no trace of a credential");
        let mut after = Conversations::new(Tokens(200));
        assert_eq!(after.restore(Millis(50.0), Millis(1_000.0), &kept), 1);
        assert_eq!(
            after.restore(Millis(50.0), Millis(1_000.0), &kept),
            0,
            "known by now"
        );
        let expected = after.arrived(Millis(60.0), Some(7), None, false);
        assert_eq!((expected.turn, expected.history), (3, Tokens(1_350)));
        assert_eq!(expected.class.stage, Stage::Middle);
        // Another one begins.
        assert_eq!(turn(&mut after, 8, 60.0, 100), 1);
    }

    #[test]
    fn silence_over_a_restart_counts_as_an_end_once() {
        let mut before = Conversations::new(Tokens(200));
        turn(&mut before, 7, 0.0, 1_000);
        let kept = before.kept(Millis(1_000.0));
        let mut after = Conversations::new(Tokens(200));
        after.restore(Millis(10.0), Millis(86_400_000.0), &kept);
        let turns = |of: &Conversations| of.habits.all().turns();
        let begun = turns(&after);
        after.sweep(Millis(20.0));
        assert_eq!(turns(&after), begun + 1.0);
        let kept = after.kept(Millis(30.0));
        assert!(kept[0].is_over);
        let mut again = Conversations::new(Tokens(200));
        again.restore(Millis::ZERO, Millis::ZERO, &kept);
        let begun = turns(&again);
        again.sweep(Millis(1e9));
        assert_eq!(turns(&again), begun);
    }
}
