use super::*;

fn conversations() -> Conversations {
    Conversations::new(Tokens(200), 0.05)
}

struct Talker<'a> {
    conversations: &'a mut Conversations,
    name: Arc<str>,
    key: u64,
    now: f64,
    length: u64,
}

impl<'a> Talker<'a> {
    fn new(conversations: &'a mut Conversations, key: u64, now: f64) -> Self {
        Self {
            conversations,
            name: key.to_string().into(),
            key,
            now,
            length: 0,
        }
    }

    /// A turn `gap` after the last answer that adds `added` tokens and is answered by 100 within 50 ms.
    fn turn(&mut self, gap: f64, added: u64, last: bool) -> (Expected, Tokens) {
        self.now += gap;
        let arrived = Millis(self.now);
        let expected = self.conversations.arrived(arrived, Some(self.key), None, false);
        self.now += 50.0;
        let turns = self.conversations.turned(&Turned {
            key: self.key,
            name: &self.name,
            worker: WorkerId(0),
            class: expected.class,
            finish: Finish::Stop,
            arrived,
            ended: Millis(self.now),
            prompt: Tokens(self.length + added),
            response: Tokens(100),
            last,
            tips: vec![PrefixHash(2)],
            shared: Tokens(16),
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
fn silence_is_first_believed_and_later_counted() {
    let mut all = conversations();
    // Every other conversation has a second turn after a second; silence of the rest is counted as it comes.
    for key in 0..200 {
        let mut talker = Talker::new(&mut all, key, key as f64 * 1000.0);
        talker.turn(0.0, 100, false);
        if key % 2 == 0 {
            talker.turn(1000.0, 10, false);
        }
        all.sweep(Millis(key as f64 * 1000.0));
    }
    all.sweep(Millis(1e7));
    all.sweep(Millis(2e7));
    assert!(all.due.is_empty());
    let before = all.habits.all().turns();
    Talker::new(&mut all, 1000, 2e7).turn(0.0, 100, false);
    assert!(
        all.sweep(Millis(2e7 + 60.0)).is_empty(),
        "it has only just answered"
    );
    let silent = all.sweep(Millis(2e7 + 30_000.0));
    assert_eq!(silent.len(), 1);
    assert_eq!((&*silent[0].name, silent[0].shared), ("1000", Tokens(16)));
    assert_eq!(silent[0].tips, [PrefixHash(2)]);
    assert!(all.sweep(Millis(1e8)).is_empty());
    assert!(all.habits.all().turns() > before);
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
