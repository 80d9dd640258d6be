//! Per-request routing by `x-tailroute-policy: NAME`, or weights such as `slo=2,locality=0.5`. Unless
//! `[routing.requests]` allows some, the header is ignored; otherwise an invalid one is refused: a client that measures
//! a policy must not measure another one. The header is never forwarded to the worker.

use config::{Requests, WeightName};
use http::{Extensions, HeaderValue, Request};
use policy::route::{Ask, Override, Overrides};

use protocol::error::ApiError;
use protocol::headers;
use state::Routing;

const MAX_BYTES: usize = 256;

#[derive(Clone, Debug)]
struct PolicyHeaders(Vec<HeaderValue>);

/// The policy or weights that a request asks for and may have.
#[derive(Clone, Debug, PartialEq)]
pub struct Asked {
    text: String,
    /// Weights of the request; without them, the text is a policy's name.
    own: Option<Override>,
}

/// Removes the header from a request and keeps its values.
pub fn take<B>(request: &mut Request<B>) {
    if !request.headers().contains_key(&headers::POLICY) {
        return;
    }
    let values = request.headers().get_all(&headers::POLICY);
    let carried = PolicyHeaders(values.iter().cloned().collect());
    request.headers_mut().remove(&headers::POLICY);
    request.extensions_mut().insert(carried);
}

impl Asked {
    /// Reads the choice of a request; `None` if it makes none, or may not. Fails with 400 if the request may choose and
    /// its header is invalid.
    pub fn of(routing: &Routing, extensions: &Extensions) -> Result<Option<Box<Self>>, ApiError> {
        let Some(PolicyHeaders(values)) = extensions.get() else {
            return Ok(None);
        };
        let allowed = &routing.live().requests;
        if !allowed.any() {
            return Ok(None);
        }
        let [value] = &values[..] else {
            let what = format!("is there {} times; send it once", values.len());
            return Err(ApiError::UnfitPolicy(what));
        };
        let text = value
            .to_str()
            .map_err(|_| ApiError::UnfitPolicy("has characters that are not visible ASCII".to_owned()))?;
        let asked = Self::read(text, allowed, &routing.policy.load().settings.named);
        asked
            .map(|asked| Some(Box::new(asked)))
            .map_err(ApiError::UnfitPolicy)
    }

    /// Returns the choice as input of the policy.
    pub fn ask(&self) -> Ask<'_> {
        match &self.own {
            Some(own) => Ask::Own(own),
            None => Ask::Named(&self.text),
        }
    }

    /// Returns the trimmed text of the header.
    pub fn text(&self) -> &str {
        &self.text
    }

    fn read(text: &str, allowed: &Requests, named: &Overrides) -> Result<Self, String> {
        let text = text.trim();
        if text.len() > MAX_BYTES {
            return Err(format!("is longer than {MAX_BYTES} bytes"));
        }
        let own = if text.contains('=') {
            Some(weights(text, allowed)?)
        } else if !allowed.named {
            let names = list(allowed.weights.iter().map(|weight| weight.as_str()));
            return Err(format!("takes weights only, as in `{names}=1`, found {text:?}"));
        } else if named.contains_key(text) {
            None
        } else {
            let names = list(named.keys().map(String::as_str));
            return Err(format!(
                "names no policy that may be asked for, found {text:?}; there are: {names}"
            ));
        };
        Ok(Self {
            text: text.to_owned(),
            own,
        })
    }
}

fn list<'a>(names: impl Iterator<Item = &'a str>) -> String {
    let names: Vec<_> = names.collect();
    if names.is_empty() {
        return "none".to_owned();
    }
    names.join(", ")
}

/// Parses `slo=2,locality=0.5`. Each allowed weight may appear once.
fn weights(text: &str, allowed: &Requests) -> Result<Override, String> {
    let mut own = Override::default();
    for pair in text.split(',') {
        let Some((name, value)) = pair.split_once('=') else {
            return Err(format!("is no list of WEIGHT=NUMBER, found {pair:?} in it"));
        };
        let (name, value) = (name.trim(), value.trim());
        let Some(weight) = allowed.weights.iter().find(|weight| weight.as_str() == name) else {
            let names = list(allowed.weights.iter().map(|weight| weight.as_str()));
            return Err(format!(
                "sets {name:?}, which may not be set here; may be set: {names}"
            ));
        };
        let value = number(*weight, value)?;
        match own.weights.get_mut(*weight) {
            slot @ None => *slot = Some(value),
            Some(_) => return Err(format!("sets `{name}` twice")),
        }
    }
    Ok(own)
}

fn number(weight: WeightName, text: &str) -> Result<f64, String> {
    let number: Option<f64> = text.parse().ok();
    // NaN is in no range.
    let number = number.filter(|number| (0.0..=weight.spec().most).contains(number));
    number.ok_or_else(|| {
        let (name, most) = (weight.as_str(), weight.spec().most);
        format!("sets `{name}`: expected a number of at least 0 and at most {most}, found {text:?}")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str, weights: &[WeightName]) -> Result<Asked, String> {
        let allowed = Requests {
            named: true,
            weights: weights.to_vec(),
        };
        let named = [("fast".to_owned(), Override::default())].into();
        Asked::read(text, &allowed, &named)
    }

    #[test]
    fn a_name_is_looked_up_and_weights_are_read() {
        let asked = read(" fast ", &[]).unwrap();
        assert_eq!(asked.ask(), Ask::Named("fast"));
        let asked = read("slo=2, locality = 0.5", &[WeightName::Slo, WeightName::Locality]).unwrap();
        let mut expected = Override::default();
        expected.weights.slo = Some(2.0);
        expected.weights.locality = Some(0.5);
        assert_eq!(asked.ask(), Ask::Own(&expected));
    }

    #[test]
    fn what_cannot_be_followed_to_the_letter_is_refused_by_field() {
        let most = "expected a number of at least 0 and at most 1000000, found";
        for (text, why) in [
            (
                "slow",
                "names no policy that may be asked for, found \"slow\"; there are: fast",
            ),
            (
                "",
                "names no policy that may be asked for, found \"\"; there are: fast",
            ),
            ("fast,slo=1", "is no list of WEIGHT=NUMBER, found \"fast\" in it"),
            ("slo=1,", "is no list of WEIGHT=NUMBER, found \"\" in it"),
            (
                "load=1",
                "sets \"load\", which may not be set here; may be set: slo",
            ),
            (
                "SLO=1",
                "sets \"SLO\", which may not be set here; may be set: slo",
            ),
            ("slo=1,slo=2", "sets `slo` twice"),
            ("slo=", &format!("sets `slo`: {most} \"\"")),
            ("slo=-1", &format!("sets `slo`: {most} \"-1\"")),
            ("slo=nan", &format!("sets `slo`: {most} \"nan\"")),
            ("slo=inf", &format!("sets `slo`: {most} \"inf\"")),
            ("slo=1e7", &format!("sets `slo`: {most} \"1e7\"")),
            ("slo=1=2", &format!("sets `slo`: {most} \"1=2\"")),
            (&"x".repeat(257), "is longer than 256 bytes"),
        ] {
            assert_eq!(read(text, &[WeightName::Slo]), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn where_only_weights_may_be_set_no_name_is_known() {
        let allowed = Requests {
            named: false,
            weights: vec![WeightName::Slo],
        };
        let named = [("fast".to_owned(), Override::default())].into();
        let refused = Asked::read("fast", &allowed, &named).unwrap_err();
        assert_eq!(refused, "takes weights only, as in `slo=1`, found \"fast\"");
    }
}
