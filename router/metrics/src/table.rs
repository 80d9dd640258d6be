//! The rows of all files of metrics. A metric that is not in the table cannot be created. A value of a fixed label that
//! is not in it fails a debug assertion, and is otherwise counted under `other` ([`super::labelled`]).

use super::spec::Table;
use super::{
    admin, admission, bus, caches, discovery, failures, gen_ai, index, picker, process, requests, tail,
    traces, workers,
};

/// All metrics, by topic.
pub const TABLE: Table = &[
    ("Requests and turns", requests::TABLE),
    ("Generative AI, by its semantic conventions", gen_ai::TABLE),
    ("Admission and configuration", admission::TABLE),
    ("Administration", admin::TABLE),
    ("Endpoint picker", picker::TABLE),
    ("Workers", workers::TABLE),
    ("Discovery of workers", discovery::TABLE),
    ("Caches and their events", caches::TABLE),
    ("Index", index::TABLE),
    ("Failures", failures::TABLE),
    ("Objectives, habits and the free tail", tail::TABLE),
    ("Traces", traces::TABLE),
    ("Replicas", bus::TABLE),
    ("The process", process::TABLE),
];
