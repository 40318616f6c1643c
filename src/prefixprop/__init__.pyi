from prefixprop import attention as attention
from prefixprop import models as models
from prefixprop.classifier import DocumentClassifier as DocumentClassifier
from prefixprop.config import PrefixPropagationConfig as PrefixPropagationConfig
from prefixprop.config import PrefixTuningConfig as PrefixTuningConfig
from prefixprop.predict import load_run as load_run
from prefixprop.tuners.counting import ParameterCount as ParameterCount
from prefixprop.tuners.counting import count_parameters as count_parameters

__version__: str
