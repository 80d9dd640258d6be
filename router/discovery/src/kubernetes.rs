//! Workers named by a Kubernetes API server: endpoints of Services, or pods.
//!
//! kube's watcher lists the objects and watches changes: it resumes an ended watch from the last event or bookmark, and
//! lists again after 410 Gone. This file applies its events to a bounded set of objects and handles failures with
//! backoff ([`crate::pause`]). The last set stays in force during any failure. [`transport`] is the HTTP service below
//! kube's client, and [`objects`] converts [`endpoints`] and [`pods`] to workers.
//!
//! A dead connection may give no sign. The server is asked to end each watch after 55 s, and the router ends one that
//! lasts longer after 70 s, which bounds the delay of a change.

mod endpoints;
mod failure;
mod lines;
mod objects;
mod pods;
mod refusal;
mod server;
mod transport;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use config::{Template, Watched};
use futures_util::stream::{BoxStream, StreamExt as _};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client};
use tokio::time::{Instant, timeout_at};
use tracing::{debug, info};

use self::failure::WatchFailure;
use self::objects::{Object, Rules, SliceEndpoint, check, gather};
pub(crate) use self::objects::{address, in_words};
use self::pods::Pod;
use self::transport::KubeTransport;
use crate::LOG;
use crate::pause::{self, Backoff};
use crate::source::DiscoverySource;
use crate::state::DiscoveryState;

const PAGE: u32 = 40;
const MAX_OBJECTS: usize = 10_000;
const MAX_ENDPOINTS: usize = 20_000;
const LIST_TIMEOUT: Duration = Duration::from_secs(60);
/// Time after which the server is asked to end a watch, in seconds.
const WATCH_S: u32 = 55;
const PUBLISH_INTERVAL: Duration = Duration::from_millis(50);
const TOO_MANY: &str = "a list has more than 1000 pages: narrow the selection";

pub(crate) async fn run(settings: &config::Kubernetes, template: &Template, state: &Arc<DiscoveryState>) {
    match &settings.watched {
        Watched::Services(names) => {
            let selector = format!("kubernetes.io/service-name in ({})", names.join(","));
            Follower::<EndpointSlice>::new(state, settings, template, selector)
                .run()
                .await;
        }
        Watched::Pods(selector) => {
            Follower::<Pod>::new(state, settings, template, selector.clone())
                .run()
                .await;
        }
    }
}

type WatchEvents<T> = BoxStream<'static, Result<Event<T>, watcher::Error>>;

#[derive(Default)]
struct Objects {
    by_name: BTreeMap<String, Vec<SliceEndpoint>>,
    endpoints: usize,
}

impl Objects {
    fn put(&mut self, name: &str, endpoints: Vec<SliceEndpoint>) {
        self.remove(name);
        self.endpoints += endpoints.len();
        self.by_name.insert(name.to_owned(), endpoints);
    }

    fn remove(&mut self, name: &str) {
        let before = self.by_name.remove(name);
        self.endpoints -= before.map_or(0, |before| before.len());
    }

    fn are_too_many(&self) -> bool {
        self.by_name.len() > MAX_OBJECTS || self.endpoints > MAX_ENDPOINTS
    }
}

struct Follower<'a, T> {
    state: &'a DiscoveryState,
    rules: Rules<'a>,
    selector: String,
    transport: KubeTransport,
    namespace: String,
    objects: Objects,
    /// Objects of the list being read, and its deadline.
    listed: Objects,
    list_deadline: Option<Instant>,
    published: Instant,
    is_new: bool,
    pause: Backoff,
    kind: std::marker::PhantomData<T>,
}

impl<'a, T: Object> Follower<'a, T> {
    fn new(
        state: &'a Arc<DiscoveryState>,
        settings: &'a config::Kubernetes,
        template: &'a Template,
        selector: String,
    ) -> Self {
        Self {
            state,
            rules: Rules::new(settings, template),
            selector,
            transport: KubeTransport::new(settings, state),
            namespace: String::new(),
            objects: Objects::default(),
            listed: Objects::default(),
            list_deadline: None,
            published: Instant::now(),
            is_new: false,
            pause: Backoff::new(pause::seed()),
            kind: std::marker::PhantomData,
        }
    }

    async fn run(mut self) {
        let mut events: Option<WatchEvents<T>> = None;
        loop {
            let outcome = match &mut events {
                Some(events) => self.next(events).await,
                None => self.begin().await.map(|begun| events = Some(begun)),
            };
            if let Err(failure) = outcome {
                if failure.needs_list() {
                    events = None;
                }
                self.failed(&failure).await;
            }
        }
    }

    async fn begin(&mut self) -> Result<WatchEvents<T>, WatchFailure> {
        let namespace = self.transport.namespace().await;
        self.namespace = namespace.map_err(WatchFailure::Malformed)?;
        let client = Client::new(self.transport.clone(), &*self.namespace);
        let api = Api::<T>::namespaced(client, &self.namespace);
        let config = watcher::Config::default().labels(&self.selector);
        Ok(watcher(api, config.timeout(WATCH_S).page_size(PAGE)).boxed())
    }

    /// Waits for one event and applies it. Changes are published at once, but at most every [`PUBLISH_INTERVAL`].
    async fn next(&mut self, events: &mut WatchEvents<T>) -> Result<(), WatchFailure> {
        // Receiving buffered events does not yield, so this call gives other tasks their turn.
        tokio::task::consume_budget().await;
        let due = self.is_new.then(|| self.published + PUBLISH_INTERVAL);
        if due.is_some_and(|due| due <= Instant::now()) {
            self.publish();
        }
        let event = match due.into_iter().chain(self.list_deadline).min() {
            None => events.next().await,
            Some(until) => match timeout_at(until, events.next()).await {
                Ok(event) => event,
                Err(_)
                    if self
                        .list_deadline
                        .is_some_and(|deadline| deadline <= Instant::now()) =>
                {
                    let what = format!("a list of {} takes longer than {LIST_TIMEOUT:?}", T::RESOURCE);
                    return Err(WatchFailure::Malformed(what));
                }
                Err(_) => return Ok(()),
            },
        };
        match event {
            Some(Ok(event)) => self.apply(&event),
            Some(Err(error)) => Err(WatchFailure::of_watcher(&error)),
            None => Err(WatchFailure::Malformed("the watcher ended".to_owned())),
        }
    }

    fn apply(&mut self, event: &Event<T>) -> Result<(), WatchFailure> {
        match event {
            Event::Init => {
                self.transport.list_begins();
                self.listed = Objects::default();
                self.list_deadline = Some(Instant::now() + LIST_TIMEOUT);
            }
            Event::InitApply(object) => {
                self.listed.put(name(object)?, object.endpoints(&self.rules));
                if self.listed.are_too_many() {
                    return Err(too_many::<T>());
                }
            }
            Event::InitDone => {
                self.objects = std::mem::take(&mut self.listed);
                self.list_deadline = None;
                debug!(target: LOG, objects = self.objects.by_name.len(), "listed");
                self.publish();
            }
            Event::Apply(object) => {
                let name = name(object)?;
                self.objects.put(name, object.endpoints(&self.rules));
                if self.objects.are_too_many() {
                    // The next list reports the error; the published state stays.
                    self.objects.remove(name);
                    self.is_new = false;
                    return Err(WatchFailure::Gone);
                }
                self.changed();
            }
            Event::Delete(object) => {
                self.objects.remove(name(object)?);
                self.changed();
            }
        }
        Ok(())
    }

    fn changed(&mut self) {
        self.is_new = true;
        self.pause.reset();
    }

    fn publish(&mut self) {
        (self.published, self.is_new) = (Instant::now(), false);
        let found = gather(self.objects.by_name.values().flatten());
        self.state.found(DiscoverySource::Kubernetes, found);
    }

    async fn failed(&mut self, failure: &WatchFailure) {
        self.list_deadline = None;
        if self.transport.take_watch_ended() {
            self.pause.reset();
        }
        if self.is_new {
            self.publish();
        }
        match failure {
            WatchFailure::Gone => {
                info!(target: LOG, "the watch expired; listing again");
            }
            WatchFailure::Refused(verb, refusal) => {
                let why = failure::explain(verb, T::RESOURCE, &self.namespace, refusal);
                self.state.failed(DiscoverySource::Kubernetes, &why);
            }
            WatchFailure::Malformed(why) => {
                self.state.failed(DiscoverySource::Kubernetes, why);
            }
        }
        tokio::time::sleep(self.pause.next()).await;
    }
}

fn name<T: Object>(object: &T) -> Result<&str, WatchFailure> {
    check(object.meta()).map_err(WatchFailure::Malformed)
}

fn too_many<T: Object>() -> WatchFailure {
    WatchFailure::Malformed(format!(
        "there are more than {MAX_OBJECTS} {} or {MAX_ENDPOINTS} endpoints: narrow the selection",
        T::RESOURCE
    ))
}

/// Returns an upper bound on the number of JSON values in a text.
fn values(text: &[u8]) -> usize {
    memchr::memchr3_iter(b',', b'{', b'[', text).count() + 1
}
