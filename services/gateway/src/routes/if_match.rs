//! `If-Match` of RFC 9110 for versioned objects: a write is refused if its client has seen another version.

use http::{HeaderMap, header};
use muster_domain::ProblemCode;
use muster_store::SeenVersion;

use crate::{json::integer, problem::Problem};

/// The condition for the write.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum IfMatch {
    /// `*`: any version that was written.
    Written,
    /// One of these versions. Tags that cannot be a version are left out.
    OneOf(Vec<u64>),
}

impl IfMatch {
    /// Reads the header; `None` if it is absent.
    pub(super) fn read(headers: &HeaderMap) -> Result<Option<IfMatch>, Problem> {
        let wrong = || {
            let why = "must be `*`, or the ETags of reads: each a number in quotes";
            Problem::field(ProblemCode::InvalidRequest, "/header/If-Match", why)
        };
        let mut given = headers.get_all(header::IF_MATCH).iter().peekable();
        if given.peek().is_none() {
            return Ok(None);
        }
        let mut lines = Vec::new();
        for line in given {
            lines.push(line.to_str().map_err(|_| wrong())?.trim());
        }
        if lines == ["*"] {
            return Ok(Some(IfMatch::Written));
        }
        let whole = lines.join(",");
        let (mut versions, mut rest) = (Vec::new(), whole.trim_start_matches([',', ' ', '\t']));
        if rest.is_empty() {
            return Err(wrong());
        }
        while !rest.is_empty() {
            // A weak tag never matches a strong one, and the gateway's tags are strong.
            let weak = rest.starts_with("W/");
            let (tag, after) = rest
                .strip_prefix("W/")
                .unwrap_or(rest)
                .strip_prefix('"')
                .and_then(|tag| tag.split_once('"'))
                .ok_or_else(wrong)?;
            versions.extend(integer(tag).filter(|version| !weak && version.to_string() == tag));
            let next = after.trim_start_matches([' ', '\t']);
            if !next.is_empty() && !next.starts_with(',') {
                return Err(wrong());
            }
            rest = next.trim_start_matches([',', ' ', '\t']);
        }
        Ok(Some(IfMatch::OneOf(versions)))
    }

    /// The version that the write is to replace, if it meets the condition. 0 means that no version was written yet.
    pub(super) fn against(&self, stands: u64) -> Result<SeenVersion, Problem> {
        let fits = match self {
            IfMatch::Written => stands > 0,
            IfMatch::OneOf(versions) => versions.contains(&stands),
        };
        if fits { Ok(SeenVersion::Exactly(stands)) } else { Err(changed_meanwhile(stands)) }
    }
}

/// The refusal of a write because another write came first.
pub(super) fn changed_meanwhile(version: u64) -> Problem {
    let why = format!("version \"{version}\" stands; read it, and decide again");
    Problem::new(ProblemCode::PreconditionFailed, why)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn read(lines: &[&'static str]) -> Result<Option<IfMatch>, Problem> {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(header::IF_MATCH, HeaderValue::from_static(line));
        }
        IfMatch::read(&headers)
    }

    #[test]
    fn tags_are_read_as_the_rfc_writes_them() {
        assert_eq!(read(&[]).unwrap(), None);
        assert_eq!(read(&["*"]).unwrap(), Some(IfMatch::Written));
        assert_eq!(read(&["\"5\""]).unwrap(), Some(IfMatch::OneOf(vec![5])));
        assert_eq!(read(&["\"5\", \"a,b\" ,\"7\"", "\"8\""]).unwrap(), Some(IfMatch::OneOf(vec![5, 7, 8])));
        assert_eq!(read(&["W/\"5\""]).unwrap(), Some(IfMatch::OneOf(Vec::new())));
        for wrong in [&["5"][..], &["\"5"], &[""], &["\"5\" \"6\""], &["*", "\"5\""], &["\"5\", *"]] {
            assert_eq!(read(wrong).unwrap_err().code, ProblemCode::InvalidRequest, "{wrong:?}");
        }
    }

    #[test]
    fn a_star_is_anything_that_was_written_and_an_unknown_tag_is_nothing() {
        assert_eq!(IfMatch::Written.against(3).unwrap(), SeenVersion::Exactly(3));
        assert_eq!(IfMatch::Written.against(0).unwrap_err().code, ProblemCode::PreconditionFailed);
        assert_eq!(IfMatch::OneOf(vec![0]).against(0).unwrap(), SeenVersion::Exactly(0));
        assert_eq!(IfMatch::OneOf(vec![1, 3]).against(3).unwrap(), SeenVersion::Exactly(3));
        assert_eq!(IfMatch::OneOf(Vec::new()).against(3).unwrap_err().code, ProblemCode::PreconditionFailed);
    }
}
