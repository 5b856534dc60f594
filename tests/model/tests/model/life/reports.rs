//! Results on the stream.

use super::super::record::Report;

/// A set of results on the stream, by their content and by whether their fence is the record's.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Reports(u8);

impl Reports {
    fn bit(report: Report, ours: bool) -> u8 {
        1 << (report as u8 + if ours { 0 } else { 3 })
    }

    pub(super) fn has(self, report: Report, ours: bool) -> bool {
        self.0 & Reports::bit(report, ours) != 0
    }

    pub(super) fn with(self, report: Report, ours: bool) -> Reports {
        Reports(self.0 | Reports::bit(report, ours))
    }

    pub(super) fn without(self, report: Report, ours: bool) -> Reports {
        Reports(self.0 & !Reports::bit(report, ours))
    }

    /// Marks every fence as old.
    pub(super) fn stale(self) -> Reports {
        Reports((self.0 | self.0 << 3) & 0b11_1000)
    }

    pub(super) fn only_ours(self) -> Reports {
        Reports(self.0 & 0b111)
    }

    pub(super) fn any_ours(self) -> bool {
        self.0 & 0b111 != 0
    }

    pub(super) fn iter(self) -> impl Iterator<Item = (Report, bool)> {
        let all = Report::ALL.into_iter().flat_map(|report| [(report, true), (report, false)]);
        all.filter(move |(report, ours)| self.has(*report, *ours))
    }
}
