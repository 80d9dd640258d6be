//! Tests with shell scripts as children.

use super::*;

const HELLO: &str = r#"echo '{"hello": {"device": "a lathe", "model": "m", "context_tokens": 4096}}'"#;

async fn child(script: &str) -> Result<Child, ChildError> {
    let arguments = ["-c".into(), script.into()];
    let long = Duration::from_secs(60);
    Child::start(OsStr::new("sh"), &arguments, long, long).await
}

const CELL: Cell = Cell {
    cached_tokens: 64,
    uncached_tokens: 32,
    pass: 1,
};

#[tokio::test]
async fn a_child_greets_answers_and_exits_at_the_end_of_its_input() {
    // Checks the request and answers it.
    let answer = r#"while read -r line; do
        [ "$line" = '{"cached_tokens":64,"uncached_tokens":32,"repeat":1}' ] || exit 9
        echo '{"cached_tokens":64,"uncached_tokens":31,"prefill_ms":12.5,"flops":1e9,"bytes":1e6}'; done; exit 3"#;
    let mut child = child(&format!("{HELLO}; {answer}")).await.unwrap();
    assert_eq!(child.facts().device.as_deref(), Some("a lathe"));
    assert_eq!(child.facts().context_tokens, Some(4096));
    for _ in 0..2 {
        let sample = child.measure(CELL).await.unwrap();
        assert_eq!((sample.uncached.0, sample.prefill.0), (31, 12.5));
        assert_eq!(sample.flops, Some(1e9));
    }
    assert_eq!(child.end().await.unwrap().code(), Some(3));
}

#[tokio::test]
async fn a_child_that_cannot_be_started_is_named() {
    let long = Duration::from_secs(60);
    let error = Child::start(OsStr::new("/nowhere/python"), &[], long, long).await;
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with("/nowhere/python: cannot be started"), "{error}");
}

#[tokio::test]
async fn the_exit_status_of_a_child_that_exits_early_is_reported() {
    let error = child("exit 7").await.unwrap_err().to_string();
    assert!(error.contains("exit status: 7"), "{error}");
    let mut child = child(&format!("{HELLO}; read -r line; exit 8")).await.unwrap();
    let error = child.measure(CELL).await.unwrap_err();
    assert!(
        error.is_final() && error.to_string().contains("exit status: 8"),
        "{error}"
    );
}

#[tokio::test]
async fn an_invalid_answer_is_shown() {
    let error = child("echo Traceback; cat").await.unwrap_err().to_string();
    assert!(
        error.contains("\"Traceback\"") && error.contains("hello"),
        "{error}"
    );
    let mut child = child(&format!("{HELLO}; read -r line; echo out of memory; cat"))
        .await
        .unwrap();
    let error = child.measure(CELL).await.unwrap_err().to_string();
    assert!(
        error.contains("\"out of memory\", which is not a sample"),
        "{error}"
    );
}

#[tokio::test]
async fn a_child_that_hangs_times_out() {
    let arguments = ["-c".into(), format!("{HELLO}; exec cat > /dev/null").into()];
    let (long, short) = (Duration::from_secs(60), Duration::from_millis(20));
    let mut child = Child::start(OsStr::new("sh"), &arguments, long, short)
        .await
        .unwrap();
    let error = child.measure(CELL).await.unwrap_err().to_string();
    assert!(error.contains("did not answer within"), "{error}");
}
