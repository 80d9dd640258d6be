//! Media within messages, by their `uuid`, URL or data.

use policy::fingerprint::{Field, MediaDigest, MediaHasher, Medium, Pieces};

use super::message::{TYPE, UUID};
use super::once::Met;
use crate::json::{Malformed, Scanner};

/// Reads a medium by its `uuid`, or else by its whole part.
pub(super) fn named_medium(
    scanner: &mut Scanner<'_>,
    pieces: &mut Pieces,
    medium: Medium,
    twice: &mut bool,
) -> Result<(), Malformed> {
    let mut whole = scanner.clone();
    match named(uuid(scanner, twice)?, medium)? {
        Some(digest) => {
            pieces.media(Field::Media, medium, digest);
            Ok(())
        }
        None => unnamed(&mut whole, pieces, medium),
    }
}

/// Skips a part. Returns a scanner at its `uuid`, if it has one.
pub(super) fn uuid<'a>(
    scanner: &mut Scanner<'a>,
    twice: &mut bool,
) -> Result<Option<Scanner<'a>>, Malformed> {
    let (mut uuid, mut met) = (None, Met::default());
    scanner.object(|scanner, key| {
        if key == b"uuid" {
            met.note(UUID, twice);
            uuid = Some(scanner.clone());
        } else if key == b"type" {
            met.note(TYPE, twice);
        }
        scanner.skip().map(drop)
    })?;
    Ok(uuid)
}

/// Returns the digest of a `uuid`; `None` if it is absent or `null`. vLLM keys its media cache by `uuid` alone and
/// ignores the URL.
pub(super) fn named(uuid: Option<Scanner<'_>>, medium: Medium) -> Result<Option<MediaDigest>, Malformed> {
    let Some(mut scanner) = uuid.filter(|uuid| uuid.clone().peek() != Some(b'n')) else {
        return Ok(None);
    };
    let mut hasher = MediaHasher::new();
    // No URL begins with this byte.
    hasher.push(&[0xFF]);
    hasher.push(medium.name().as_bytes());
    hasher.push(&[0xFF]);
    let mut out = |bytes: &[u8]| hasher.push(bytes);
    if scanner.peek() == Some(b'"') {
        scanner.string(&mut out)?;
    } else {
        // vLLM treats `5` as `"5"`.
        scanner.compact(&mut out)?;
    }
    Ok(Some(hasher.digest()))
}

pub(super) fn unnamed(
    scanner: &mut Scanner<'_>,
    pieces: &mut Pieces,
    medium: Medium,
) -> Result<(), Malformed> {
    let mut hasher = MediaHasher::new();
    scanner.compact(&mut |bytes: &[u8]| hasher.push(bytes))?;
    pieces.media(Field::Media, medium, hasher.digest());
    Ok(())
}

/// Reads the digest of an image's URL or data: a string, or an object with `url`. An empty string counts as absent.
pub(super) fn image(scanner: &mut Scanner<'_>, digest: &mut Option<MediaDigest>) -> Result<(), Malformed> {
    *digest = None;
    if scanner.peek() == Some(b'"') {
        *digest = url(scanner)?;
        return Ok(());
    }
    scanner.object(|scanner, key| {
        if key == b"url" {
            *digest = url(scanner)?;
            Ok(())
        } else {
            scanner.skip().map(drop)
        }
    })
}

fn url(scanner: &mut Scanner<'_>) -> Result<Option<MediaDigest>, Malformed> {
    if scanner.peek() != Some(b'"') {
        return scanner.skip().map(|_| None);
    }
    let (mut hasher, mut is_empty) = (MediaHasher::new(), true);
    scanner.string(&mut |bytes: &[u8]| {
        is_empty &= bytes.is_empty();
        hasher.push(bytes);
    })?;
    Ok((!is_empty).then(|| hasher.digest()))
}
