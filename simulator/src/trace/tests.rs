use super::*;

const META: &str = r#"{"meta":{"bs":4,"source":"here"}}"#;

fn refusal(lines: &[&str]) -> String {
    let mut reader = Reader::new(Format::Auto);
    for line in lines {
        if let Err(error) = reader.line(line) {
            return error.to_string();
        }
    }
    panic!("nothing was refused");
}

fn turn_text(ts: f64, conv: u64, turn: u32, prompt: u64, history: u64, response: u64, more: &str) -> String {
    format!(
        r#"{{"ts":{ts},"conv":{conv},"turn":{turn},"prompt_tokens":{prompt},"history_tokens":{history},"response_tokens":{response}{more}}}"#
    )
}

#[test]
fn a_turn_trace_reads_back_what_it_says() {
    let mut reader = Reader::new(Format::Auto);
    assert_eq!(reader.line(META).unwrap(), None);
    assert_eq!(reader.line("").unwrap(), None);
    let text = turn_text(0.5, 3, 0, 9, 0, 2, r#","block_runs":[10,2,40,1],"class":"image""#);
    let turn = reader.line(&text).unwrap().unwrap();
    assert_eq!(turn.blocks, Some(vec![10, 11, 40]));
    assert_eq!(turn.total_tokens(), Tokens(11));
    assert_eq!(turn.at(), Millis(500.0));
    assert_eq!(reader.class_name(turn.class), Some("image"));
    assert_eq!(reader.meta().block_size, Some(4));
    assert_eq!(reader.lines(), 3);
}

#[test]
fn unsorted_lines_are_refused_with_both_times() {
    let refused = refusal(&[
        &turn_text(2.0, 1, 0, 1, 0, 1, ""),
        &turn_text(1.0, 2, 0, 1, 0, 1, ""),
    ]);
    assert_eq!(refused, "line 2: not sorted by time: 1 s comes after 2 s");
}

#[test]
fn negative_and_mistyped_fields_are_named() {
    let negative = turn_text(0.0, 1, 0, 1, 0, 1, "").replace(r#""prompt_tokens":1"#, r#""prompt_tokens":-5"#);
    assert_eq!(
        refusal(&[&negative]),
        "line 1: field `prompt_tokens`: expected a whole number that is not negative, found -5"
    );
    let text = turn_text(0.0, 1, 0, 1, 0, 1, "").replace(r#""ts":0"#, r#""ts":"noon""#);
    assert_eq!(
        refusal(&[&text]),
        "line 1: field `ts`: expected a number, found \"noon\""
    );
    assert!(
        refusal(&[&turn_text(-1.0, 1, 0, 1, 0, 1, "")]).contains("field `ts`: expected a time of at least 0")
    );
    let ids = turn_text(0.0, 1, 0, 1, 0, 1, r#","blocks":["a"]"#);
    assert!(refusal(&[META, &ids]).starts_with("line 2: field `blocks`: expected a list of whole numbers"));
}

#[test]
fn unknown_and_missing_fields_are_named() {
    assert_eq!(
        refusal(&[&turn_text(0.0, 1, 0, 1, 0, 1, r#","model":"x""#)]),
        "line 1: field `model`: unknown"
    );
    assert_eq!(
        refusal(&[r#"{"ts":0,"conv":1}"#]),
        "line 1: field `turn`: missing"
    );
    assert!(refusal(&[r#"{"hello":1}"#]).starts_with("line 1: not a line of a turn trace"));
    assert!(refusal(&["[1]"]).starts_with("line 1: not a JSON object"));
    assert!(refusal(&[r#"{"ts":0,"#]).starts_with("line 1: not a JSON object"));
}

#[test]
fn a_turn_that_names_meta_first_is_not_taken_for_a_meta_line() {
    let both = turn_text(5.0, 1, 0, 1, 0, 1, "").replacen('{', r#"{"meta":{"bs":4},"#, 1);
    assert!(refusal(&[&both]).starts_with("line 1: field `meta`: unknown field `ts`"));
    let mut reader = Reader::new(Format::Auto);
    assert_eq!(reader.line(r#"{"meta":{"bs":4,"seed":1}}"#).unwrap(), None);
}

#[test]
fn refusals_speak_the_formats_own_names_and_units() {
    let mooncake = r#"{"timestamp":-5,"input_length":1,"output_length":1,"hash_ids":[1]}"#;
    let before = "line 1: field `timestamp`: expected a time of at least 0, found -5";
    assert_eq!(refusal(&[mooncake]), before);
    let bailian = r#"{"chat_id":1,"timestamp":-5,"input_length":1,"output_length":1}"#;
    assert_eq!(refusal(&[bailian]), before);
    let null = mooncake.replace("[1]", "null");
    assert_eq!(
        refusal(&[&null]),
        "line 1: field `hash_ids`: expected a list of whole numbers that are not negative, found null"
    );
    let twice = turn_text(0.0, 1, 0, 1, 0, 1, r#","ts":1"#);
    assert_eq!(refusal(&[&twice]), "line 1: field `ts`: given twice");
    let turn = bailian.replace("-5", "5").replace('}', r#","turn":"x"}"#);
    assert!(refusal(&[&turn]).starts_with("line 1: field `turn`: expected a whole number from 0"));
}

#[test]
fn a_capture_may_carry_more_fields() {
    let mut reader = Reader::new(Format::Auto);
    reader.line(r#"{"meta":{"capture":true}}"#).unwrap();
    let turn = reader
        .line(&turn_text(0.0, 1, 0, 1, 0, 1, r#","worker":"a""#))
        .unwrap();
    assert!(turn.is_some());
}

#[test]
fn meta_comes_first_and_once() {
    assert_eq!(
        refusal(&[META, META]),
        "line 2: a single meta line is allowed, before the first turn"
    );
    assert!(refusal(&[&turn_text(0.0, 1, 0, 1, 0, 1, ""), META]).starts_with("line 2"));
}

#[test]
fn a_history_longer_than_what_was_said_is_refused() {
    let refused = refusal(&[
        &turn_text(0.0, 1, 0, 5, 0, 5, ""),
        &turn_text(1.0, 1, 1, 1, 11, 1, ""),
    ]);
    assert_eq!(
        refused,
        "line 2: conversation 1: a history of 11 tokens, but only 10 were said before"
    );
}

#[test]
fn turn_numbers_must_increase() {
    let refused = refusal(&[
        &turn_text(0.0, 1, 4, 5, 3, 5, ""),
        &turn_text(1.0, 1, 4, 1, 3, 1, ""),
    ]);
    assert_eq!(refused, "line 2: conversation 1: turn 4 comes after turn 4");
}

#[test]
fn blocks_must_cover_the_prompt_and_need_a_size() {
    let text = turn_text(0.0, 1, 0, 8, 0, 1, r#","blocks":[1,2,3]"#);
    assert_eq!(
        refusal(&[META, &text]),
        "line 2: 3 blocks of 4 tokens do not cover a prompt of 8 tokens"
    );
    assert!(refusal(&[&text]).contains("blocks without `meta.bs`"));
    let short = turn_text(0.0, 1, 0, 8, 0, 1, r#","blocks":[1]"#);
    assert!(refusal(&[META, &short]).contains("do not cover"));
}

#[test]
fn ids_that_do_not_name_whole_prefixes_are_refused() {
    let refused = refusal(&[
        META,
        &turn_text(0.0, 1, 0, 8, 0, 1, r#","blocks":[1,2]"#),
        &turn_text(1.0, 2, 0, 8, 0, 1, r#","blocks":[3,2]"#),
    ]);
    assert_eq!(
        refused,
        "line 3: block 2 at position 1 follows block 3, but followed block 1 before: an id must identify a whole \
         prefix"
    );
    let twice = turn_text(0.0, 1, 0, 8, 0, 1, r#","blocks":[1,1]"#);
    assert!(refusal(&[META, &twice]).contains("followed nothing before"));
}

#[test]
fn claims_of_absurd_size_are_refused_before_memory_is_taken() {
    let runs = turn_text(0.0, 1, 0, 8, 0, 1, r#","block_runs":[0,18446744073709551615]"#);
    assert!(refusal(&[META, &runs]).contains("too many blocks"));
    let tokens = turn_text(0.0, 1, 0, u64::MAX, 0, 1, "");
    assert!(refusal(&[&tokens]).contains("is more than"));
    let zero = r#"{"meta":{"bs":0}}"#;
    assert!(refusal(&[zero]).contains("at least one token"));
}

#[test]
fn mooncake_requests_become_conversations() {
    let lines = [
        r#"{"timestamp":0,"input_length":1100,"output_length":20,"hash_ids":[0,1,2]}"#,
        r#"{"timestamp":1000,"input_length":1100,"output_length":20,"hash_ids":[0,1,3]}"#,
        r#"{"timestamp":2000,"input_length":1200,"output_length":5,"hash_ids":[0,1,4]}"#,
        r#"{"timestamp":3000,"input_length":1110,"output_length":5,"hash_ids":[0,1,5]}"#,
    ];
    let mut reader = Reader::new(Format::Auto);
    let turns: Vec<_> = lines
        .iter()
        .map(|line| reader.line(line).unwrap().unwrap())
        .collect();
    let seen: Vec<_> = turns
        .iter()
        .map(|t| (t.conversation.0, t.turn, t.history_tokens.0))
        .collect();
    // The third continues the latest of two equals; the fourth is too short to contain either's response.
    assert_eq!(seen, [(0, 0, 0), (1, 0, 0), (1, 1, 1120), (2, 0, 0)]);
    assert_eq!(turns[2].ts_s, 2.0);
    assert_eq!(reader.meta().block_size, Some(512));
}

#[test]
fn bailian_chats_continue_their_parent_once() {
    let lines = [
        r#"{"chat_id":9,"parent_chat_id":-1,"timestamp":1.0,"input_length":20,"output_length":4,"type":"text","turn":1,"hash_ids":[7,8]}"#,
        r#"{"chat_id":10,"parent_chat_id":9,"timestamp":2.0,"input_length":30,"output_length":4,"type":"text","turn":2,"hash_ids":[7,11]}"#,
        r#"{"chat_id":11,"parent_chat_id":9,"timestamp":3.0,"input_length":21,"output_length":4,"type":"image","turn":2,"hash_ids":[7,12]}"#,
    ];
    let mut reader = Reader::new(Format::Auto);
    let turns: Vec<_> = lines
        .iter()
        .map(|line| reader.line(line).unwrap().unwrap())
        .collect();
    let seen: Vec<_> = turns
        .iter()
        .map(|t| (t.conversation.0, t.turn, t.history_tokens.0))
        .collect();
    assert_eq!(seen, [(0, 0, 0), (0, 1, 24), (1, 1, 21)]);
    assert_ne!(turns[0].class, turns[2].class);
    assert_eq!(reader.class_name(turns[2].class), Some("image"));
    let again = reader.line(lines[0]).unwrap_err();
    assert_eq!(again.to_string(), "line 4: field `chat_id`: 9 was seen before");
}

proptest::proptest! {
    #[test]
    fn no_line_makes_the_reader_panic(lines in proptest::collection::vec("\\PC{0,80}", 1..8)) {
        let mut reader = Reader::new(Format::Auto);
        for line in lines {
            let _ = reader.line(&line);
        }
    }

    #[test]
    fn no_numbers_make_the_reader_panic(
        rows in proptest::collection::vec((proptest::num::f64::ANY, 0u64..3, 0u32..5, proptest::num::u64::ANY), 1..12)
    ) {
        let mut reader = Reader::new(Format::Turn);
        let _ = reader.line(META);
        for (ts, conv, turn, tokens) in rows {
            let runs = format!(r#","block_runs":[{tokens},{tokens}]"#);
            let _ = reader.line(&turn_text(ts, conv, turn, tokens, tokens, tokens, &runs));
            let _ = reader.line(&turn_text(ts, conv, turn, tokens % 100, 0, 1, ""));
        }
    }
}

const FLEET: &str = r#"{"fleet":{"at_s":1,"settings_since_s":0,"settings":{},"utilisation_window_ms":60000,"objective_ms":500,"objective_share":0.95,"next_prompt_tokens":200,"follows_hints":true,"workers":[{"name":"a","alpha_ms_per_token":0.05,"beta_ms":20,"gamma_ms_per_token2":0,"overhead_ms":0,"cost_source":"learned","capacity_tokens":1000,"capacity_source":"reported"}]}}"#;

#[test]
fn a_capture_has_its_fleet_as_last_recorded() {
    let mut reader = Reader::new(Format::Auto);
    reader
        .line(r#"{"meta":{"bs":64,"capture":true,"version":2}}"#)
        .unwrap();
    assert_eq!(reader.line(FLEET), Ok(None));
    assert_eq!(reader.line(&FLEET.replace("0.05", "0.07")), Ok(None));
    let fleet = reader.fleet().unwrap();
    assert_eq!(fleet.workers[0].cost.alpha_ms_per_token, 0.07);
    let refused = |text: &str| Reader::new(Format::Capture).line(text).unwrap_err().to_string();
    assert!(refused(&FLEET.replace("0.05", "-1")).contains("`fleet.alpha_ms_per_token`: out of range"));
    assert!(refused(&FLEET.replace("\"at_s\":1,", "")).contains("field `fleet`: missing field `at_s`"));
}

#[test]
fn a_capture_of_a_newer_version_is_refused() {
    let mut reader = Reader::new(Format::Auto);
    let refused = reader
        .line(r#"{"meta":{"bs":64,"capture":true,"version":3}}"#)
        .unwrap_err();
    assert!(
        refused.to_string().contains("`meta.version`: a newer capture"),
        "{refused}"
    );
}

#[test]
fn a_response_in_one_piece_has_no_first_token() {
    let line = |whole: &str| {
        let text = format!(
            r#"{{"ts":1,"conv":1,"turn":0,"prompt_tokens":9,"response_tokens":1,"ttft_ms":5,"took_ms":5,"cached_tokens":4{whole}}}"#
        );
        Reader::new(Format::Capture)
            .line(&text)
            .unwrap()
            .unwrap()
            .captured
    };
    assert_eq!(line("").ttft, Some(Millis(5.0)));
    assert_eq!(
        (line(r#","whole":true"#).ttft, line("").cached),
        (None, Some(Tokens(4)))
    );
}
