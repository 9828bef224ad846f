"""Whether a defence hides its gradient: measurements, checks on them, and the diagnosis of all."""

from enresnet.evaluation.masking.checks import MaskingCheck as MaskingCheck
from enresnet.evaluation.masking.diagnosis import Diagnosis as Diagnosis
from enresnet.evaluation.masking.diagnosis import diagnose as diagnose
from enresnet.evaluation.masking.diagnosis import diagnose_session as diagnose_session

__all__ = ["Diagnosis", "MaskingCheck", "diagnose", "diagnose_session"]
