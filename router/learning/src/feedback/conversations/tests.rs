use super::*;

fn conversations() -> Conversations {
    Conversations::new(Tokens(200))
}

struct Talker<'a> {
    conversations: &'a mut Conversations,
    key: u64,
    now: f64,
    length: u64,
}

impl<'a> Talker<'a> {
    fn new(conversations: &'a mut Conversations, key: u64, now: f64) -> Self {
        Self {
            conversations,
            key,
            now,
            length: 0,
        }
    }

    /// Records a turn `gap` ms after the last response, which adds `added` tokens and gets 100 tokens in 50 ms.
    fn turn(&mut self, gap: f64, added: u64, last: bool) -> (Expected, Tokens) {
        self.now += gap;
        let arrived = Millis(self.now);
        let expected = self.conversations.arrived(arrived, Some(self.key), None, false);
        self.now += 50.0;
        let turns = self.conversations.turned(&CompletedTurn {
            key: self.key,
            class: expected.class,
            finish: Finish::Stop,
            arrived,
            ended: Millis(self.now),
            prompt: Tokens(self.length + added),
            response: Tokens(100),
            last,
        });
        assert_eq!(turns.number, expected.turn);
        self.length += added + 100;
        (expected, turns.history)
    }
}

#[test]
fn turns_are_counted_and_teach_what_the_next_prompt_adds() {
    let mut all = conversations();
    for key in 0..60 {
        let mut talker = Talker::new(&mut all, key, 0.0);
        let (first, history) = talker.turn(0.0, 1000, false);
        assert_eq!((first.class.stage, history), (Stage::First, Tokens(0)));
        let (second, history) = talker.turn(2000.0, 40, false);
        assert_eq!((second.class.stage, history), (Stage::Second, Tokens(1100)));
    }
    let expected = all.arrived(Millis(1e6), None, None, false);
    assert!((30..80).contains(&expected.next_prompt.0), "{expected:?}");
    assert!((90..130).contains(&expected.response.0), "{expected:?}");
    let (gap, _) = all.habits.all().gap();
    assert!((2000.0..9000.0).contains(&gap.0), "{gap}");
}

#[test]
fn a_silence_that_outlasts_patience_is_counted_once() {
    let mut all = conversations();
    Talker::new(&mut all, 1, 0.0).turn(0.0, 100, false);
    let before = all.habits.all().turns();
    all.sweep(Millis(60.0));
    assert_eq!(all.habits.all().turns(), before, "it has only just answered");
    all.sweep(Millis(1e7));
    let after = all.habits.all().turns();
    assert!(after > before && all.due.is_empty());
    all.sweep(Millis(1e8));
    assert_eq!(all.habits.all().turns(), after);
}

#[test]
fn a_conversation_that_is_being_answered_is_not_silent() {
    let mut all = conversations();
    let mut talker = Talker::new(&mut all, 1, 0.0);
    talker.turn(0.0, 100, false);
    all.arrived(Millis(1000.0), Some(1), None, false);
    let before = all.habits.all().turns();
    all.sweep(Millis(500_000.0));
    assert_eq!(all.habits.all().turns(), before);
    all.sweep(Millis(1e9));
    all.sweep(Millis(1e9));
    assert!(all.habits.all().turns() > before);
}

#[test]
fn a_conversation_that_its_client_ended_is_forgotten_and_counted() {
    let mut all = conversations();
    Talker::new(&mut all, 1, 0.0).turn(0.0, 100, true);
    assert!(all.is_empty() && all.due.is_empty());
    let (share, _) = all.habits.all().return_share();
    assert!(share < 0.5);
}

#[test]
fn a_branch_teaches_nothing_about_gaps() {
    let mut all = conversations();
    Talker::new(&mut all, 1, 1000.0).turn(0.0, 100, false);
    let turns = all.habits.all().turns();
    Talker::new(&mut all, 1, 0.0).turn(0.0, 200, false);
    assert_eq!(all.habits.all().turns(), turns);
}
